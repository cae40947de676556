"""What a decision gets to see: who may be chosen, what each is believed to hold, and all of it as one view.

Reads the fleet, what is known of caches, and who can hand KV to whom; changes nothing of them but one thing that it
learns by looking: a target's block size, which its events know better than its metrics page.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from hashlib import blake2b

from router.blocks.events import Key, TargetId
from router.blocks.knowledge import Belief, Knowledge
from router.blocks.known import Known
from router.decide.desk import Desk
from router.decide.record import Record
from router.fleet.instances import Fleet, Served
from router.fleet.target import Target
from router.peers import Peers
from router.prompt.prompt import Prompt
from scorers.contract import Ask, PoolHit, Row, View

NO_MODEL = Served("", None)  # requests about a stored response name none


class Sight:
    """`secret` is what pseudonyms hang on."""

    def __init__(self, fleet: Fleet, knowledge: Knowledge, peers: Peers, desk: Desk, secret: int) -> None:
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
        regime = self._desk.regime
        if record.arm is None or regime.experiment is None or regime.experiment.isolate == "none":
            return candidates
        instances = tuple(sorted({target.instance.id for target in self._fleet.serving(model)}))
        own = regime.instances_of(record.arm, instances)
        return [target for target in candidates if target.instance.id in own] or candidates

    def block_tokens(self, target: Target) -> int | None:
        """Its events' word wins over its metrics page's: that one may be the size of something else (protocol 5)."""
        told = self._knowledge.block_tokens(target.id)
        if told is not None:
            target.stores_blocks_of(told)
        return target.block_tokens

    def held_tokens(self, target: Target) -> int | None:
        return self._knowledge.held_tokens(target.id, self.block_tokens(target), target.trust.trusted)

    def beliefs(self, known: Known | None, candidates: Sequence[Target]) -> dict[TargetId, Belief]:
        if known is None or not known.keys:
            return {}
        told = self._knowledge.block_tokens
        sizes, distrusted = {}, set()
        for target in candidates:
            if (size := told(target.id)) is not None and size != target.block_tokens:
                target.stores_blocks_of(size)
            sizes[target.id] = target.block_tokens
            if not target.trust.trusted:
                distrusted.add(target.id)
        return self._knowledge.beliefs(known, sizes, frozenset(distrusted))

    def view(
        self,
        record: Record,
        prompt: Prompt,
        served: Served | None,
        known: Known | None,
        pooled: PoolHit | None,
        candidates: tuple[Row, ...],
        now: float,
    ) -> View:
        """With the history of a request that is placed as a whole."""
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
            self._fleet.nominal(prompt.model, now),
            prefixes,
            Ask(
                self._pseudonym(record.client, b"client"),
                prompt.priority,
                prompt.ttft_ms,
                prompt.tpot_ms,
                prompt.output_tokens,
            ),
        )

    def _pseudonym(self, name: str | None, of: bytes) -> str | None:
        """Sessions are named by clients, at any length and often by what people are called, keys by who holds them:
        nobody beyond this sees that name. It has the same pseudonym wherever the deployment's secret is the same.
        """
        if name is None:
            return None
        text = name.encode(errors="surrogatepass")
        return blake2b(text, digest_size=8, key=self._secret, person=of).hexdigest()

    def peers_of(self, answering: str, feeding: Sequence[Target]) -> list[Target]:
        target = self._fleet.target(TargetId(answering))
        return [] if target is None else self._peers.of(target, feeding)


def prefix_keys(known: Known | None) -> tuple[Key, ...]:
    """Stable names for "prompts that begin alike": the keys of blocks 1, 2, 4, 8, ... in the smallest size in use."""
    if known is None or not known.keys:
        return ()
    keys = known.keys[min(known.keys)]
    return tuple(keys[(1 << i) - 1] for i in range(len(keys).bit_length()))
