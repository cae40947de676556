"""Estimates how much of a prompt one target, or each target of a fleet, holds, from three sources.

    trusted event stream                what the index holds of it ---------+
    none, an untrusted or a late one    prompts sent there recently --------+--> OverlapEstimate
    in either case in addition          prompts on their way there ---------+

A stream joined late does not cover blocks cached before. Until its index is complete (`TargetCacheState.certain`)
prompts sent to the target count as well, and if nothing is known of the prompt, the overlap is *unknown* (`None`).

For a fleet, targets are grouped by the index alone. Most targets of a large fleet hold nothing of a prompt, or the
same short beginning, and a decision examines few of them. So the largest group is not listed: `rest` is the overlap
of every target in no other group. The index answers in bits (`block_holders.py`), where one operation covers all
targets; only the members of smaller groups are resolved. `unsure` contains the targets that need a full estimate
(no trusted stream, or blocks on their way).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from typing import NamedTuple

from router.kvcache.event_sequencer import EventSequencer, TargetCacheState
from router.kvcache.events import Key, TargetId
from router.kvcache.index import BlockIndex, HeldBlocks
from router.kvcache.speculative import ApproximateBlocks, SpeculativeBlocks
from router.kvcache.tokenized_prompt import TokenizedPrompt
from scorers.contract import Overlap


class OverlapEstimate(NamedTuple):
    """The estimated overlap of one prompt with one target's cache.

    `indexed_tokens` is the overlap by the target's events, in any tier, whether these events are trusted or not
    (None: no event stream). It is compared with the engine's `cached_tokens` even while it is not used, so that
    trust can return.
    """

    overlap: Overlap | None
    indexed_tokens: int | None
    block_tokens: int | None  # None: no block size known yet
    held_blocks: int  # leading blocks on its GPU, by events or approximately: not speculative
    recomputed_tokens: int = 0  # of the overlap's `expected_tokens`: held, but a hybrid model cannot re-use them yet


NO_OVERLAP = Overlap(0, 0, 0, 0, "events", None)
NOTHING = HeldBlocks(0, 0, 0)
CACHE_TTL_S = 0.1
HOLDS_NOTHING = OverlapEstimate(NO_OVERLAP, 0, None, 0)


class _CachedEstimate(NamedTuple):
    held: HeldBlocks
    reused: int  # tokens on its GPU
    estimate: OverlapEstimate


class OverlapEstimator:
    """Computes estimates for targets in the caller's `states`; `invalidate` must be called after every change of
    one.
    """

    def __init__(
        self,
        index: BlockIndex,
        speculative: SpeculativeBlocks,
        approximate: ApproximateBlocks,
        states: Mapping[TargetId, TargetCacheState],
    ) -> None:
        self._index = index
        self._speculative = speculative
        self._approximate = approximate
        self._states = states
        # The last estimate of each target with a trusted stream: most hold equally much of the next prompt, nothing
        # or the same first blocks. Valid until the target's next event; ages are exact to `CACHE_TTL_S`.
        self._cache: dict[TargetId, _CachedEstimate] = {}
        self._cache_since = 0.0

    def invalidate(self, target: TargetId) -> None:
        """Drop the cached estimate of `target`."""
        self._cache.pop(target, None)

    def estimate(
        self,
        prompt: TokenizedPrompt,
        block_tokens: Mapping[TargetId, int | None],
        distrusted: Collection[TargetId],
        drafting: Collection[TargetId],
        now: float,
    ) -> dict[TargetId, OverlapEstimate]:
        """Return one estimate per target of `block_tokens` (block sizes). `distrusted` ones contradicted the index,
        `drafting` ones compute the last block of every hit again.
        """
        estimates: dict[TargetId, OverlapEstimate] = {}
        for target, its_size in block_tokens.items():
            sequencer = self._trusted_sequencer(target) if its_size is None else None
            if sequencer is not None and not sequencer.joined_late:
                estimates[target] = HOLDS_NOTHING  # no block was stored yet, or its size would be known
        for size in {size for size in block_tokens.values() if size is not None}:
            if size not in prompt.keys:  # this block size appeared while the prompt was being tokenised
                continue
            targets = [target for target, its_size in block_tokens.items() if its_size == size]
            self._add_estimates(estimates, prompt, size, targets, distrusted, drafting, now)
        return estimates

    def _add_estimates(
        self,
        estimates: dict[TargetId, OverlapEstimate],
        prompt: TokenizedPrompt,
        size: int,
        targets: Sequence[TargetId],
        distrusted: Collection[TargetId],
        drafting: Collection[TargetId],
        now: float,
    ) -> None:
        """Estimate `targets`, whose blocks have `size` tokens."""
        if now - self._cache_since > CACHE_TTL_S:
            self._cache.clear()
            self._cache_since = now
        keys = usable(prompt, size)
        matches, less = self._index.match_reused(keys, targets)
        cache = self._cache
        tails = self._speculative.find_tails(keys, now) if self._index.hybrid else {}
        unit_sizes = self._index.units if prompt.origin is not None else {}
        expecting: dict[int, Collection[TargetId]] = {}  # by depth: the targets that will get the next block
        units: dict[int, Sequence[Key]] = {}  # of the prompt, by their size
        for target in targets:
            held = matches.get(target, NOTHING)
            if (expected := expecting.get(held.gpu)) is None:
                expected = self._speculative.targets_expecting(keys[held.gpu], now) if held.gpu < len(keys) else ()
                expecting[held.gpu] = expected
            reused = size * less.get(target, held.gpu)
            if unit_sizes and target in unit_sizes:
                unit = unit_sizes[target]
                if unit not in units:
                    units[unit] = usable_units(self._index.split_into_units(prompt, size, unit), prompt, unit)
                drafts = target in drafting
                reused = unit * self._index.count_reused_units(target, units[unit], held.gpu, drafts=drafts)
            elif target in drafting:
                reused = size * self._index.count_reusable(target, keys, held.gpu, drafts=True)
            later: Sequence[int] = ()
            if target in tails and (target in less or target in expected):
                later = [blocks for blocks in tails[target] if blocks * size > reused]
            trusted, cached = target not in distrusted, cache.get(target)
            uncached = later or not trusted or target in expected
            same = cached is not None and cached.held == held and cached.reused == reused
            if cached is not None and same and cached.estimate.block_tokens == size and not uncached:
                estimates[target] = cached.estimate
                continue
            estimate = estimates[target] = self._estimate_one(target, keys, size, held, reused, later, trusted, now)
            if not uncached and self._is_certain(target):
                cache[target] = _CachedEstimate(held, reused, estimate)

    def _trusted_sequencer(self, target: TargetId) -> EventSequencer | None:
        state = self._states.get(target)
        sequencer = state.sequencer if state is not None else None
        return sequencer if sequencer is not None and sequencer.trusted else None

    def _is_certain(self, target: TargetId) -> bool:
        state = self._states.get(target)
        return state is not None and state.certain

    def _leave_out(self, target: TargetId, held: HeldBlocks, blocks: int) -> HeldBlocks:
        """Return `held`, of which the engine re-uses only `blocks` on its GPU. Slower tiers of a hybrid model are not
        counted.
        """
        if target in self._index.hybrid:
            return HeldBlocks(blocks, blocks, blocks)
        in_memory, anywhere = (more if more > held.gpu else blocks for more in (held.cpu, held.disk))
        return HeldBlocks(blocks, in_memory, anywhere)

    def _estimate_one(
        self,
        target: TargetId,
        keys: Sequence[Key],
        size: int,
        held: HeldBlocks,
        gpu: int,
        tails: Sequence[int],
        trusted: bool,
        now: float,
    ) -> OverlapEstimate:
        """Return the estimate for one target. `gpu`: the tokens on its GPU that its engine re-uses; `tails`: larger
        numbers of leading blocks that it will soon re-use, in order.
        """
        state = self._states.get(target)
        sequencer = state.sequencer if state is not None else None
        on_gpu = gpu // size
        reused = held if on_gpu == held.gpu else self._leave_out(target, held, on_gpu)
        cpu, disk = max(gpu, reused.cpu * size), max(gpu, reused.disk * size)
        indexed = None if sequencer is None else disk
        received_s = None if sequencer is None else sequencer.last_heard_s
        # to the millisecond, as logged views have it; a third of the cost of `round`
        age_s = None if received_s is None else ((now - received_s) * 1e3 + 0.5) // 1 / 1e3
        if state is None or sequencer is None or not sequencer.trusted or not trusted:
            likely = self._approximate.leading_blocks(target, keys, now)
            if trusted:  # before a replay the index is behind, not wrong
                likely = max(likely, held.gpu)
            expected = self._speculative.leading_blocks(target, keys, likely, now)
            tokens = likely * size
            overlap = Overlap(tokens, tokens, tokens, expected * size, "approximate", age_s)
            return OverlapEstimate(overlap, indexed, size, likely)
        if not state.certain and (likely := self._approximate.leading_blocks(target, keys, now)) > held.gpu:
            expected = self._speculative.leading_blocks(target, keys, likely, now)
            tiers = [max(likely, blocks) * size for blocks in held]
            overlap = Overlap(tiers[0], tiers[1], tiers[2], expected * size, "approximate", age_s)
            return OverlapEstimate(overlap, indexed, size, likely)
        expected = self._speculative.leading_blocks(target, keys, held.gpu, now)
        if not expected and not disk and not state.certain:
            return OverlapEstimate(None, indexed, size, 0)
        # A prompt for which a hybrid model re-uses less than it holds makes its engine keep what the next one needs. So
        # `expected` counts what is held: prompts with a common beginning meet there.
        soon = max(expected * size, gpu)
        recomputed = max(0, held.gpu * size - gpu)
        if target in self._index.hybrid:
            last = next((blocks for blocks in reversed(tails) if blocks <= expected), on_gpu)
            recomputed = soon - max(gpu, last * size)
        overlap = Overlap(gpu, cpu, disk, soon, "events", age_s)
        return OverlapEstimate(overlap, indexed, size, held.gpu, recomputed)


class OverlapGroup(NamedTuple):
    """Targets with the same overlap."""

    overlap: Overlap  # its age is unset
    targets: Sequence[TargetId]


class OverlapGroups(NamedTuple):
    """The result of `group_overlaps`."""

    groups: Sequence[OverlapGroup]
    rest: Overlap  # of all targets in no group
    unsure: Set[TargetId]  # targets that need a full estimate


def group_overlaps(
    index: BlockIndex,
    speculative: SpeculativeBlocks,
    prompt: TokenizedPrompt,
    initially_unsure: Set[TargetId],
    now: float,
) -> OverlapGroups:
    """Group all joined targets by overlap. `initially_unsure`: targets whose index content is not authoritative;
    `unsure` of the result also contains targets that will get the next block of a group. The cost grows with the
    targets outside the largest group.
    """
    parts: list[tuple[Overlap, int]] = []
    no_overlap, uncertain = index.all_bits, set(initially_unsure)
    for size in prompt.keys:
        keys = usable(prompt, size)
        for bits, held, reused in index.match_all(keys):
            if held.gpu < len(keys):
                uncertain.update(speculative.targets_expecting(keys[held.gpu], now))
            if held.disk:
                gpu = held.gpu * size
                if reused == held.gpu:
                    overlap = Overlap(gpu, held.cpu * size, held.disk * size, gpu, "events", None)
                else:  # slower tiers of a hybrid model are not counted
                    overlap = Overlap(reused * size, reused * size, reused * size, gpu, "events", None)
                parts.append((overlap, bits))
                no_overlap &= ~bits
    uncertain |= index.odd
    parts.append((NO_OVERLAP, no_overlap))
    parts.sort(key=lambda part: part[1].bit_count())
    rest, _ = parts.pop()
    return OverlapGroups([OverlapGroup(overlap, index.targets_of(bits)) for overlap, bits in parts], rest, uncertain)


def usable_units(units: Sequence[Key], prompt: TokenizedPrompt, unit: int) -> Sequence[Key]:
    """Return the keys of the units, of `unit` tokens, that can be hit: see `usable`."""
    return units[:-1] if prompt.complete and len(prompt.ids) == len(units) * unit else units


def usable(prompt: TokenizedPrompt, size: int) -> Sequence[Key]:
    """Return the keys that can be hit: a hit ends before the last token, which is always computed (protocol
    4.5).
    """
    return usable_units(prompt.keys[size], prompt, size)
