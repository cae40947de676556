"""Learns which targets cache which prompts although the events that announced the blocks were missed.

    engine's cache   P0 P1 P2 P3 | Q4 Q5      P: cached before the stream was joined, and in use ever since
    announced                      Q4 Q5      each prefix hit announces what follows it, never P again
    index                           ?  ?      Q4 and Q5 wait for their parent P3

A stream is joined late if the router started after the engine, or a gap was longer than the engine's replay
buffer. LRU evicts only unused blocks, so a prefix that stays in use would also stay unknown. Two kinds of evidence
replace the missed events:

* `recall`, before a choice: an engine's hash names a whole prefix. If the parent of a waiting block has the hash
  that the prompt's block 3 would have, the engine holds the prompt's blocks 0 to 3, as it evicts a chain from its end.
* `on_answer`: an engine that delivers n cached tokens held the first n tokens of that prompt, and of a hybrid model the
  tails that end there.

The index stores these blocks under the engine's own hashes, so blocks announced after them find their parent, and
their removal is applied like any other.

In the same way `recall` learns to which prompts the entries inside blocks belong that an engine announced
(`partial_entries.py`), whether its stream was joined late or not.

This requires the engine's way to hash. vLLM's defaults (since 0.29) and the usual seeds are tried, the next one on
each prompt that may have waiting blocks, until one gives a hash that the engine announced; 60 equal bits are a
proof. A first block is a proof, too. If an engine's hashes cannot be computed (xxhash without a seed), its cache is
estimated by the prompts sent to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from router.kvcache.bulk import SHORT
from router.kvcache.digest_cache import DigestCache, budget_for
from router.kvcache.engine_hashes import Digest, EngineChain, fits, is_comparable, list_chains
from router.kvcache.event_sequencer import TargetCacheState
from router.kvcache.events import BlocksStored, EngineHash, Key, TargetId
from router.kvcache.index import BlockIndex
from router.kvcache.memory_budget import MemoryBudget
from router.kvcache.recent_removals import RecentRemovals
from router.kvcache.tokenized_prompt import TokenizedPrompt

ANSWER_TOKENS = 16_384  # newly hashed after one answer: 2 to 10 ms
TRIAL_TOKENS = 32_768  # of a prompt, hashed in a way that is not proved yet
DIGESTS = 65_536  # kept at most, of all models: 10 MB


class LatePrompt(NamedTuple):
    """A prompt on its way to a target whose stream was joined late."""

    target: TargetId
    prompt: TokenizedPrompt
    removals: RecentRemovals  # of the target
    removed_blocks: int  # when the prompt was sent


class MissedPrefixes:
    """`late`: the targets in the caller's `states` whose streams were joined late, kept current by `update`."""

    def __init__(
        self,
        index: BlockIndex,
        states: Mapping[TargetId, TargetCacheState],
        on_recalled: Callable[[TargetId, list[Key]], None],
        memory: MemoryBudget | None = None,
    ) -> None:
        """`on_recalled` receives the keys that entered a target's GPU tier; `memory` is for digests of prompts."""
        self._index = index
        self._states = states
        self._on_recalled = on_recalled
        self._digests = DigestCache(DIGESTS, memory or budget_for(DIGESTS))
        self._candidates = list(list_chains())
        self._trials: Counter[str] = Counter()  # by model: the candidate to try next
        self.late: set[TargetId] = set()

    @property
    def needed(self) -> bool:
        """Whether `recall` may learn anything from a prompt."""
        return bool(self.late or self._index.units)

    def update(self, target: TargetId, state: TargetCacheState) -> None:
        """Note whether the stream was joined late, after any change of `state`."""
        if state.sequencer is not None and state.sequencer.joined_late:
            self.late.add(target)
            state.keyless_blocks = self._index.watch_removals(target, watch=True)
        elif target in self.late:
            self.late.remove(target)
            self._index.watch_removals(target, watch=False)
            state.keyless_blocks = 0

    def forget(self, target: TargetId) -> None:
        """Forget a target that has left."""
        self.late.discard(target)

    def observe(self, state: TargetCacheState, event: BlocksStored, unit: int | None) -> None:
        """Learn a target's way to hash from blocks that it stored from token 0 on; `unit` as in `BlockIndex.units`."""
        if not is_comparable(event) or state.unknown_hashing:
            return
        if state.chain is None or not fits(state.chain, event, unit):
            self._prove(state, next((chain for chain in self._candidates if fits(chain, event, unit)), None))
            state.unknown_hashing = state.chain is None

    def recall(self, prompt: TokenizedPrompt) -> Iterator[None]:
        """Add to the index the blocks of `prompt` that waiting blocks prove cached, and the places of entries inside
        blocks. Each step hashes a slice.
        """
        origin, tried = prompt.origin, False
        if origin is None or (origin.adapter is not None and not origin.adapter[1]):
            return  # an adapter's path is hashed too, and this one is unknown
        hashed: dict[tuple[EngineChain, int, int], dict[EngineHash, Key]] = {}  # the prompt's units
        for target in sorted(self.late | self._index.units.keys()):
            state, size = self._states.get(target), self._index.block_tokens(target)
            if state is None or state.model != origin.model or size is None or size not in prompt.keys:
                continue
            if state.unknown_hashing or not (state.keyless_blocks or self._index.awaits_names(target)):
                continue
            unit = self._index.units.get(target, size)
            if len(prompt.ids) < unit:
                continue
            chain = state.chain
            if untried := chain is None:
                chain, tried = self._candidates[self._trials[state.model] % len(self._candidates)], True
            if (units := hashed.get((chain, size, unit))) is None:
                keys = prompt.keys[size] if unit == size else self._index.split_into_units(prompt, size, unit)
                keys = keys[: max(1, TRIAL_TOKENS // unit)] if untried else keys
                yield from self._digests.hash_in_slices(chain, keys, prompt.ids, unit, origin.adapter, origin.salt)
                hashes = _labels(self._hash(chain, prompt, keys, unit))
                units = hashed[chain, size, unit] = dict(zip(hashes, keys, strict=True))
            if self._states.get(target) is state and self._learn(target, units, size // unit):
                self._prove(state, chain)
                tried = False
        if tried:
            self._trials[origin.model] += 1

    def _learn(self, target: TargetId, units: Mapping[EngineHash, Key], size: int) -> bool:
        """Add what the hashes of a prompt's units, in order and `size` to a block, prove of a target's cache. Return
        whether they prove anything.
        """
        named = self._index.name_entries(target, units)
        blocks = list(units.items())[size - 1 :: size]
        parents = self._index.find_parents(target, units.keys()) if target in self.late else ()
        known = max((n for n, (hash_, _) in enumerate(blocks, 1) if hash_ in parents), default=0)
        if known:
            self._add(target, [hash_ for hash_, _ in blocks[:known]], [key for _, key in blocks[:known]])
        return bool(named or known)

    def send(self, target: TargetId, prompt: TokenizedPrompt) -> LatePrompt | None:
        """Return the facts for `on_answer` about a prompt sent to `target`; None if no blocks can be missed."""
        if target not in self.late or prompt.origin is None or (removals := self._index.removals(target)) is None:
            return None
        if target in self._index.units:
            return None  # its blocks are hashed in units: `recall` alone finds them
        return LatePrompt(target, prompt, removals, removals.count)

    def on_answer(self, late: LatePrompt, delivered_tokens: int) -> None:
        """Add to the index the blocks that an answer proves to be cached."""
        target, prompt, removals, removed_blocks = late
        if target not in self.late or self._index.removals(target) is not removals:
            return  # the target has left or was forgotten meanwhile
        state, size, origin = self._states[target], self._index.block_tokens(target), prompt.origin
        if state.chain is None or state.backlog or size is None or origin is None:
            return
        keys = prompt.keys.get(size, ())[: delivered_tokens // size]
        held, less = self._index.match_reused(keys, [target])
        reused = less.get(target, held[target].gpu) if target in held else 0
        removed, wanted = removals.since(removed_blocks), len(keys)
        if removed is None or reused == wanted:
            return
        # The rest of a longer prompt is hashed after its next answers.
        keys = keys[: self._digests.count_cached(state.chain, keys, origin.adapter) + max(1, ANSWER_TOKENS // size)]
        hashes = _labels(self._hash(state.chain, prompt, keys, size))
        # A salt is hashed in one of two ways, an adapter with its path: first blocks without these prove neither.
        if not (origin.salt or origin.adapter) or self._index.knows_any(target, hashes):
            if len(keys) == wanted:
                self._index.recall_tails(target, hashes)
            self._add(target, hashes, keys, removed)

    def _add(
        self, target: TargetId, hashes: Sequence[EngineHash], keys: Sequence[Key], removed: Collection[int] = ()
    ) -> None:
        entered = self._index.recall(target, hashes, keys, removed)
        self._states[target].recalled_blocks += len(entered)
        self._on_recalled(target, entered)

    def _hash(self, chain: EngineChain, prompt: TokenizedPrompt, keys: Sequence[Key], size: int) -> list[Digest]:
        origin = prompt.origin
        assert origin is not None
        return self._digests.digests(chain, keys, prompt.ids, size, origin.adapter, origin.salt)

    def _prove(self, state: TargetCacheState, chain: EngineChain | None) -> None:
        """Hash with `chain` from now on, and try it first on other engines of the model."""
        state.chain = chain
        if chain is not None:
            self._trials[state.model] = self._candidates.index(chain)


def _labels(digests: Sequence[Digest]) -> list[EngineHash]:
    return [EngineHash(EngineChain.event_hash(digest) & SHORT) for digest in digests]
