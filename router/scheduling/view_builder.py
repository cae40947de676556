"""Builds the view of a decision: the candidates, the overlaps estimated for them, and all other facts.

The builder reads the fleet, the index, and the prefill peers. It changes one thing: a target's block size, for
which the target's events are a better source than its metrics page.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b

from router.fleet.columns import CandidateColumns
from router.fleet.fleet import Fleet
from router.fleet.instance import ServedModel, Target
from router.kvcache.events import Key, TargetId
from router.kvcache.indexer import KvIndexer
from router.kvcache.overlap_estimate import NO_OVERLAP, OverlapEstimate, OverlapGroups
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.prompt import Prompt
from router.scheduling.conversations import Conversations, LastAnswer
from router.scheduling.policy.policy import Orders
from router.scheduling.policy.record import Record
from router.scheduling.prefill_peers import PrefillPeers
from router.scheduling.scheduling_request import SchedulingRequest
from router.scheduling.selector import Selector
from router.scheduling.shortlist import AlikeGroup, ShortlistRequest, all_but, shortlist
from scorers.contract import Ask, Overlap, Row, View
from scorers.streams import answer_tokens

NO_MODEL = ServedModel("", None)  # for requests about a stored response
NO_ANSWER = 0, None, None  # the progress of a session before its first answer
SENT_NOTHING = Overlap(0, 0, 0, 0, "approximate", None)
NOT_SENT = OverlapEstimate(SENT_NOTHING, None, None, 0)

CLIENTS_KNOWN = 10_000  # number of clients whose pseudonyms are cached


class ViewBuilder:
    """Builds views. The pseudonyms in views depend on `secret`."""

    def __init__(
        self,
        fleet: Fleet,
        indexer: KvIndexer,
        peers: PrefillPeers,
        selector: Selector,
        secret: int,
        conversations: Conversations,
    ) -> None:
        self._fleet = fleet
        self._indexer = indexer
        self._peers = peers
        self._selector = selector
        self._conversations = conversations
        self._secret = secret.to_bytes(8, "little")
        self._clients: dict[str, str] = {}  # pseudonyms of clients by name
        self.names_sessions = False  # whether every view names its session, even if no policy reads it

    def candidates(
        self, record: Record, model: str | None, excluding: Collection[str], only: TargetId | None, now: float
    ) -> Sequence[Target]:
        """Return the targets that may get the request. With `only`, this is that target in any breaker state, since
        no other target can answer. Otherwise, these are the targets of the request's revision. If arms are isolated
        and the request's arm has any targets among these, only the arm's targets are returned.
        """
        if only is not None:
            target = self._fleet.ready_target(model, only)
            return [] if target is None or only in excluding else [target]
        if (revision := record.revision) is not None:
            others = [t.id for t in self._fleet.targets_serving(model) if t.instance.config.revision != revision]
            excluding = {*excluding, *others}
        candidates = self._fleet.candidates(model, excluding, now, record.sender)
        policy_set = self._selector.policy_set
        if record.arm is None or policy_set.experiment is None or policy_set.experiment.isolate == "none":
            return candidates
        instances = tuple(sorted({target.instance.id for target in self._fleet.targets_serving(model)}))
        own = policy_set.instances_for(record.arm, instances)
        return [target for target in candidates if target.instance.id in own] or candidates

    def shortlist(
        self,
        orders: Orders,
        candidates: Sequence[Target],
        request: SchedulingRequest,
        now: float,
    ) -> list[Target] | None:
        """Return the few `candidates` that can win by these `orders`; None if this cannot be determined."""
        prompt, known = request.prompt, request.known
        columns = self._fleet.columns(prompt.model, now)
        if columns.others_waiting:  # then each row's price depends on all rows
            return None
        targets, others = columns.targets, set()
        if candidates is not targets:
            others = set(columns.slots.values()).difference([columns.slots[target.id] for target in candidates])
        groups = self._group(columns, others, known, prompt.model)
        if groups is None:
            return None
        prompt_tokens = len(known.ids) if known is not None and known.complete else None
        answer = answer_tokens(self._fleet.answer_lengths.mean_tokens(prompt.model), prompt.output_tokens)
        facts = ShortlistRequest(request.record.number, self._selector.seed, prompt_tokens, request.pool_hit, answer)
        return [targets[slot] for slot in shortlist(columns, groups, orders, facts)]

    def _group(
        self, columns: CandidateColumns, others: Collection[int], known: TokenizedPrompt | None, model: str | None
    ) -> Mapping[Overlap, AlikeGroup] | None:
        """Return all slots except `others` by overlap, without its source and age; None if any overlap is
        unknown.
        """
        if known is None or not known.keys:
            return {NO_OVERLAP: all_but(len(columns.targets), others)}
        if not self.block_sizes(model) <= known.keys.keys():
            return None
        outline, slots = self._indexer.overlap_groups(known), columns.slots
        unsure = [target for id in outline.unsure if (target := self._fleet.target(id)) is not None and id in slots]
        unsure += self._short_of_memory(columns, outline)
        unsure = [target for target in {*unsure, *columns.distrusted} if slots[target.id] not in others]
        estimates = self.estimates(known, unsure)
        groups: dict[Overlap, list[int]] = {}
        named = set(others)
        for target in unsure:
            estimate = estimates.get(target.id)
            if estimate is None or estimate.overlap is None:
                return None
            groups.setdefault(estimate.overlap._replace(source="events", age_s=None), []).append(slots[target.id])
            named.add(slots[target.id])
        for overlap, ids in outline.groups:
            members = [slot for id in ids if (slot := slots.get(id)) is not None]
            if named and not named.isdisjoint(members):
                members = [slot for slot in members if slot not in named]
            if members:
                groups.setdefault(overlap, []).extend(members)
                named.update(members)
        rest = outline.rest
        named.difference_update(groups.pop(rest, ()))
        all_groups = {overlap: AlikeGroup(members) for overlap, members in groups.items()}
        if len(named) < len(columns.targets):
            all_groups[rest] = all_but(len(columns.targets), named)
        return all_groups

    def _short_of_memory(self, columns: CandidateColumns, outline: OverlapGroups) -> Sequence[Target]:
        """Return the targets that may not keep what they hold of the prompt (`Target.expect_kept`)."""
        targets, slots, free_tokens = columns.targets, columns.slots, columns.free_tokens
        found = [
            targets[slot]
            for overlap, ids in outline.groups
            for id in ids
            if (slot := slots.get(id)) is not None and free_tokens[slot] < overlap.expected_tokens
        ]
        if tokens := outline.rest.expected_tokens:
            found += [target for target, free in zip(targets, free_tokens, strict=True) if free < tokens]
        return found

    def block_sizes(self, model: str | None) -> frozenset[int]:
        """Return the known block sizes of the targets that serve the model."""
        self._update_block_sizes()
        return self._fleet.block_sizes(model)

    def _update_block_sizes(self) -> None:
        for id in self._indexer.take_resized():
            if (target := self._fleet.target(id)) is not None:
                self.block_tokens(target)

    def block_tokens(self, target: Target) -> int | None:
        """Return a target's block size. The target's events take precedence over its metrics page, which may report
        the size of something else (protocol 5).
        """
        reported = self._indexer.block_tokens(target.id)
        if reported is not None:
            target.set_block_tokens(reported)
        return target.block_tokens

    def held_tokens(self, target: Target) -> int | None:
        """Return the total number of tokens that a target holds according to the index."""
        return self._indexer.held_tokens(target.id, self.block_tokens(target), target.overlap_accuracy.trusted)

    def estimates(
        self, known: TokenizedPrompt | None, candidates: Sequence[Target], last: LastAnswer | None = None
    ) -> dict[TargetId, OverlapEstimate]:
        """Return the overlap estimates of the candidates; empty if no tokens of the prompt and no `last` are known.
        `last` is the last answer of the conversation, for a prompt whose tokens are not all known: the target of
        `last` is expected to hold that answer and its prompt.
        """
        estimates: dict[TargetId, OverlapEstimate] = {}
        if known is not None and known.keys:
            self._update_block_sizes()
            sizes = {target.id: target.block_tokens for target in candidates}
            distrusted = frozenset([target.id for target in candidates if not target.overlap_accuracy.trusted])
            drafting = frozenset([target.id for target in candidates if target.overlap_accuracy.drafts])
            estimates = self._indexer.estimate_overlaps(known, sizes, distrusted, drafting)
            for target in candidates:
                if (estimate := estimates.get(target.id)) is not None and (overlap := estimate.overlap) is not None:
                    kept = target.expect_kept(overlap, known.keys)
                    if kept is not overlap:
                        estimates[target.id] = estimate._replace(overlap=kept)
        if last is None:
            return estimates
        estimates = estimates or {target.id: NOT_SENT for target in candidates}
        if (estimate := estimates.get(last.target)) is not None:
            overlap = estimate.overlap if estimate.overlap is not None else SENT_NOTHING
            tokens = max(last.tokens, overlap.expected_tokens)
            overlap = overlap._replace(expected_tokens=tokens, source="approximate")
            estimates[last.target] = estimate._replace(overlap=overlap)
        return estimates

    def build(self, request: SchedulingRequest, candidates: tuple[Row, ...], now: float, others: int = 0) -> View:
        """Return the view for a request placed as a whole. `others` is the number of candidates without a row."""
        record, prompt, known = request.record, request.prompt, request.known
        model, adapter = request.served if request.served is not None else NO_MODEL
        session = parent = program = session_turn = idle_s = after_tool_call = None
        reads_session = self._selector.policy_set.needs_session or (
            record.policy is not None and record.policy.needs_session
        )
        if reads_session or prompt.session is not None or self.names_sessions:
            session, parent, program = self._lineage(prompt)
        if reads_session and session is not None:
            session_turn, answered_s, after_tool_call = self._selector.progress.get((model, session)) or NO_ANSWER
            idle_s = None if answered_s is None else now - answered_s
        seed, turn, last_target, parent_target = self._selector.history(model, adapter, session, parent)
        prefixes = prefix_keys(known)
        return View(  # positional: keyword arguments take twice as long
            record.number,
            seed,
            model,
            adapter,
            len(known.ids) if known is not None and known.complete else None,  # prompt_tokens
            prefixes[0] if prefixes else None,
            session,
            last_target,
            request.pool_hit,
            self._fleet.occupancy.busy,
            candidates,
            turn,
            now,
            self._fleet.nominal_speed(prompt.model, now),
            prefixes,
            Ask(
                self._client_pseudonym(record.client),
                prompt.priority,
                prompt.ttft_ms,
                prompt.tpot_ms,
                prompt.output_tokens,
            ),
            others,
            self._fleet.answer_lengths.mean_tokens(prompt.model),
            program,
            parent,
            parent_target,
            session_turn,
            idle_s,
            after_tool_call,
            self._fleet.occupancy.live_share,
        )

    def _lineage(self, prompt: Prompt) -> tuple[str | None, str | None, str | None]:
        """Return the pseudonyms of a request's session, the session's parent, and the program. If the client names
        no session, the conversation is the session.
        """
        if prompt.session is None:
            name = self._conversations.identify(prompt)
            conversation = None if name is None else self._digest(name, b"opening")
            return conversation, None, conversation
        session = self.session_pseudonym(prompt.session)
        parent = None if prompt.parent is None else self.session_pseudonym(prompt.parent)
        if prompt.program is None or prompt.program == prompt.session:
            return session, parent, session
        if prompt.program == prompt.parent:
            return session, parent, parent
        return session, parent, self.session_pseudonym(prompt.program)

    def session_pseudonym(self, name: str) -> str:
        """Return the pseudonym of a client's session, as used in views and records."""
        return self._digest(name.encode(errors="surrogatepass"), b"session")

    def _client_pseudonym(self, name: str | None) -> str | None:
        """Return the pseudonym of a client (its tenant), as used in views; None if the client has no name."""
        if name is None or (known := self._clients.get(name)) is not None:
            return None if name is None else known
        if len(self._clients) >= CLIENTS_KNOWN:
            self._clients.clear()
        pseudonym = self._clients[name] = self._digest(name.encode(errors="surrogatepass"), b"client")
        return pseudonym

    def _digest(self, text: bytes, kind: bytes) -> str:
        """Return a pseudonym, the same in every process with the deployment's secret. Clients often name sessions
        after people, and API keys are named after their holders: policies never see these names.
        """
        return blake2b(text, digest_size=8, key=self._secret, person=kind).hexdigest()

    def peers_for(self, answering: str, prefilling: Sequence[Target]) -> list[Target]:
        """Return the targets in `prefilling` that can hand KV to the target `answering`."""
        target = self._fleet.target(TargetId(answering))
        return [] if target is None else self._peers.peers_for(target, prefilling)


def prefix_keys(known: TokenizedPrompt | None) -> tuple[Key, ...]:
    """Return names of the prompt's prefixes: the keys of blocks 1, 2, 4, 8, ... in the smallest block size."""
    if known is None or not known.keys:
        return ()
    keys = known.keys[min(known.keys)]
    return tuple(keys[(1 << i) - 1] for i in range(len(keys).bit_length()))
