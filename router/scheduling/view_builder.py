"""What a decision gets to see: who may be chosen, what each is believed to hold, and all of it as one view.

Reads the fleet, what is known of caches, and who can hand KV to whom; changes nothing of them but one thing that it
learns by looking: a target's block size, which its events know better than its metrics page.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b

from router.fleet.columns import CandidateColumns
from router.fleet.fleet import Fleet
from router.fleet.instance import ServedModel, Target
from router.kvcache.events import Key, TargetId
from router.kvcache.indexer import KvIndexer
from router.kvcache.overlap_estimate import OverlapEstimate
from router.kvcache.overlap_groups import NO_OVERLAP
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.prompt import Prompt
from router.scheduling.policy.policy import Orders
from router.scheduling.policy.record import Record
from router.scheduling.prefill_peers import PrefillPeers
from router.scheduling.selector import Selector
from router.scheduling.shortlist import AlikeGroup, ShortlistRequest, all_but, shortlist
from scorers.contract import Ask, Overlap, PoolHit, Row, View
from scorers.streams import answer_tokens

NO_MODEL = ServedModel("", None)  # requests about a stored response name none


class ViewBuilder:
    """`secret` is what pseudonyms hang on."""

    def __init__(self, fleet: Fleet, knowledge: KvIndexer, peers: PrefillPeers, desk: Selector, secret: int) -> None:
        self._fleet = fleet
        self._knowledge = knowledge
        self._peers = peers
        self._desk = desk
        self._secret = secret.to_bytes(8, "little")

    def candidates(
        self, record: Record, model: str | None, excluding: Collection[str], only: TargetId | None, now: float
    ) -> Sequence[Target]:
        """Who may get the request: one target where only that will do, else those of its arm where arms are isolated,
        as long as there is one.
        """
        candidates = self._fleet.candidates(model, excluding, now)
        if only is not None:
            return [target for target in candidates if target.id == only]
        regime = self._desk.policy_set
        if record.arm is None or regime.experiment is None or regime.experiment.isolate == "none":
            return candidates
        instances = tuple(sorted({target.instance.id for target in self._fleet.targets_serving(model)}))
        own = regime.instances_for(record.arm, instances)
        return [target for target in candidates if target.instance.id in own] or candidates

    def shortlist(
        self,
        orders: Orders,
        candidates: Sequence[Target],
        prompt: Prompt,
        known: TokenizedPrompt | None,
        pooled: PoolHit | None,
        number: int,
        now: float,
    ) -> list[Target] | None:
        """The few of `candidates` that can win by policies that have these `orders`; None: it cannot be told."""
        lineup = self._fleet.columns(prompt.model, now)
        if lineup.others_waiting:  # each row's price then hangs on all rows
            return None
        targets, others = lineup.targets, set()
        if candidates is not targets:
            others = set(lineup.slots.values()).difference([lineup.slots[target.id] for target in candidates])
        groups = self._groups(lineup, others, known, prompt.model)
        if groups is None:
            return None
        prompt_tokens = len(known.ids) if known is not None and known.complete else None
        answer = answer_tokens(self._fleet.answer_lengths.mean_tokens(prompt.model), prompt.output_tokens)
        request = ShortlistRequest(number, self._desk.seed, prompt_tokens, pooled, answer)
        return [targets[slot] for slot in shortlist(lineup, groups, orders, request)]

    def _groups(
        self, lineup: CandidateColumns, others: Collection[int], known: TokenizedPrompt | None, model: str | None
    ) -> Mapping[Overlap, AlikeGroup] | None:
        """The slots of all but `others` by what they hold, with no word of when and how that is known. None: it is
        unknown of some, and not of all.
        """
        if known is None or not known.keys:
            return {NO_OVERLAP: all_but(len(lineup.targets), others)}
        if not self.block_sizes(model) <= known.keys.keys():
            return None
        outline, slots = self._knowledge.overlap_groups(known), lineup.slots
        unsure = [target for id in outline.unsure if (target := self._fleet.target(id)) is not None and id in slots]
        unsure = [target for target in {*unsure, *lineup.distrusted} if slots[target.id] not in others]
        beliefs = self.estimates(known, unsure)
        groups: dict[Overlap, list[int]] = {}
        named = set(others)
        for target in unsure:
            belief = beliefs.get(target.id)
            if belief is None or belief.overlap is None:
                return None
            groups.setdefault(belief.overlap._replace(source="events", age_s=None), []).append(slots[target.id])
            named.add(slots[target.id])
        for overlap, ids in outline.groups:
            members = [slot for slot in map(slots.get, ids) if slot is not None]
            if not named.isdisjoint(members):
                members = [slot for slot in members if slot not in named]
            if members:
                groups.setdefault(overlap, []).extend(members)
                named.update(members)
        rest = outline.rest
        named.difference_update(groups.pop(rest, ()))
        all_groups = {overlap: AlikeGroup(members) for overlap, members in groups.items()}
        if len(named) < len(lineup.targets):
            all_groups[rest] = all_but(len(lineup.targets), named)
        return all_groups

    def block_sizes(self, model: str | None) -> frozenset[int]:
        """In use by those who serve the model, as far as they told."""
        self._resize()
        return self._fleet.block_sizes(model)

    def _resize(self) -> None:
        for id in self._knowledge.take_resized():
            if (target := self._fleet.target(id)) is not None:
                self.block_tokens(target)

    def block_tokens(self, target: Target) -> int | None:
        """Its events' word wins over its metrics page's: that one may be the size of something else (protocol 5)."""
        told = self._knowledge.block_tokens(target.id)
        if told is not None:
            target.set_block_tokens(told)
        return target.block_tokens

    def held_tokens(self, target: Target) -> int | None:
        return self._knowledge.held_tokens(target.id, self.block_tokens(target), target.overlap_accuracy.trusted)

    def estimates(self, known: TokenizedPrompt | None, candidates: Sequence[Target]) -> dict[TargetId, OverlapEstimate]:
        if known is None or not known.keys:
            return {}
        self._resize()
        sizes = {target.id: target.block_tokens for target in candidates}
        distrusted = frozenset([target.id for target in candidates if not target.overlap_accuracy.trusted])
        return self._knowledge.estimate_overlaps(known, sizes, distrusted)

    def build(
        self,
        record: Record,
        prompt: Prompt,
        served: ServedModel | None,
        known: TokenizedPrompt | None,
        pooled: PoolHit | None,
        candidates: tuple[Row, ...],
        now: float,
        others: int = 0,
    ) -> View:
        """With the history of a request that is placed as a whole. `others`: candidates that have no row."""
        model, adapter = served if served is not None else NO_MODEL
        session = self._pseudonym(prompt.session, b"session")
        seed, turn, last_target = self._desk.history(model, adapter, session)
        prefixes = prefix_keys(known)
        return View(  # by position: names would make it twice as dear
            record.number,
            seed,
            model,
            adapter,
            len(known.ids) if known is not None and known.complete else None,  # prompt_tokens
            prefixes[0] if prefixes else None,
            session,
            last_target,
            pooled,
            self._fleet.busy,
            candidates,
            turn,
            now,
            self._fleet.nominal_speed(prompt.model, now),
            prefixes,
            Ask(
                self._pseudonym(record.client, b"client"),
                prompt.priority,
                prompt.ttft_ms,
                prompt.tpot_ms,
                prompt.output_tokens,
            ),
            others,
            self._fleet.answer_lengths.mean_tokens(prompt.model),
        )

    def _pseudonym(self, name: str | None, of: bytes) -> str | None:
        """Sessions are named by clients, at any length and often by what people are called, keys by who holds them:
        nobody beyond this sees that name. It has the same pseudonym wherever the deployment's secret is the same.
        """
        if name is None:
            return None
        text = name.encode(errors="surrogatepass")
        return blake2b(text, digest_size=8, key=self._secret, person=of).hexdigest()

    def peers_for(self, answering: str, feeding: Sequence[Target]) -> list[Target]:
        target = self._fleet.target(TargetId(answering))
        return [] if target is None else self._peers.peers_for(target, feeding)


def prefix_keys(known: TokenizedPrompt | None) -> tuple[Key, ...]:
    """Stable names for "prompts that begin alike": the keys of blocks 1, 2, 4, 8, ... in the smallest size in use."""
    if known is None or not known.keys:
        return ()
    keys = known.keys[min(known.keys)]
    return tuple(keys[(1 << i) - 1] for i in range(len(keys).bit_length()))
