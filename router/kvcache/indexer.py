"""The KV indexer: applies the engines' cache events and estimates how much of a prompt each target holds.

    frames -> backends/vllm -> EventBatch -> EventSequencer -> BlockIndex --+
                                                                            +--> OverlapEstimate per target
    prompts sent there (speculative for seconds; where no stream is --------+
    trusted, approximate for minutes)

`overlap_estimate.py` decides between the two sources. This module does not deal with sockets, load or health. One
indexer serves all models: keys differ by model, so targets cannot mix.

Batches are applied a piece at a time: the caller passes a batch, and then calls `resume` until nothing is left. The
share of the index that one instance may fill is bounded; `over_bounds` reports an excess to the caller, which takes
away the instance's events.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from router.clock import Clock
from router.kvcache.event_sequencer import (
    ApplyBatch,
    EventSequencer,
    ForgetTarget,
    RequestReplay,
    RestoredStream,
    Step,
    TargetCacheState,
)
from router.kvcache.event_stream import EventStream
from router.kvcache.events import (
    BlockEvent,
    BlocksCleared,
    BlocksPooled,
    BlocksStored,
    EventBatch,
    Key,
    StoredBlockObserver,
    TargetId,
    Tier,
)
from router.kvcache.index import BlockCopies, BlockIndex
from router.kvcache.instance_bounds import INSTANCE_BYTES, IndexLimit, InstanceBounds
from router.kvcache.memory_budget import MemoryBudget
from router.kvcache.missed_prefixes import LatePrompt, MissedPrefixes
from router.kvcache.overlap_estimate import OverlapEstimate, OverlapEstimator, OverlapGroups, group_overlaps, usable
from router.kvcache.sent_elsewhere import SentElsewhere
from router.kvcache.snapshot_format import SavedTarget
from router.kvcache.speculative import ApproximateBlocks, SpeculativeBlocks, SpeculativePrompt
from router.kvcache.tokenized_prompt import TokenizedPrompt

APPLY_BLOCKS = 2048  # applied in one piece: 2 ms

log = logging.getLogger("warmroute.index")


class SentPrompt(NamedTuple):
    """A prompt on its way to a target; must be ended by `KvIndexer.on_first_byte` or `on_failure`."""

    speculative: SpeculativePrompt
    approximate: Sequence[Key]  # keys for `ApproximateBlocks`; empty if the target's index is certain
    late: LatePrompt | None = None  # for `MissedPrefixes.on_answer`
    repeated_blocks: int = 0  # `BlockIndex.repeated_blocks` of the target when it was sent


class KvIndexer:
    """The `EventHandler` of the event feed: a method that returns a number requests a replay from that sequence
    number.
    """

    def __init__(
        self,
        index: BlockIndex,
        speculative: SpeculativeBlocks,
        approximate: ApproximateBlocks,
        clock: Clock,
        instance_bytes: int = INSTANCE_BYTES,
        memory: MemoryBudget | None = None,
    ) -> None:
        """`instance_bytes`: limit on the memory of the entries of all targets of one instance; `memory`: for the
        digests of prompts.
        """
        self._index = index
        self._speculative = speculative
        self._approximate = approximate
        self._clock = clock
        self.observer: StoredBlockObserver | None = None  # receives every stored block that an event reports
        self._states: dict[TargetId, TargetCacheState] = {}
        self.elsewhere = SentElsewhere(index, speculative, approximate, clock)
        self._estimator = OverlapEstimator(index, speculative, approximate, self._states)
        self.missed = MissedPrefixes(index, self._states, self._on_recalled, memory)
        self._restored: dict[TargetId, RestoredStream] = {}  # restored targets that have not joined yet
        self._uncertain: set[TargetId] = set()  # targets whose state is not `certain`
        self._resized: set[TargetId] = set()  # targets with a new block size since `take_resized`
        self._bounds = InstanceBounds(index, self._states, instance_bytes)

    # membership

    def join(self, target: TargetId, model: str, *, stream: bool, replayable: bool) -> None:
        """Add `target`, which serves `model`, with no blocks but those restored from a snapshot, unconfirmed."""
        self._forget_sent(target)
        self._bounds.clear(target)
        self._states[target] = state = TargetCacheState(model)
        self._uncertain.add(target)  # until the first batch
        restored = self._restored.pop(target, None)
        if stream and restored is not None and self._index.join_restored(target, model):
            state.sequencer = EventSequencer.resume(replayable, restored.cursor)
            state.stored_blocks = restored.stored_blocks
            self._refresh(target, state)
            return
        self._index.join(target, model)
        if stream:
            state.sequencer = EventSequencer(replayable)

    def leave(self, target: TargetId) -> None:
        """Forget `target`."""
        self._forget_sent(target)
        self._index.leave(target)
        self._bounds.clear(target)
        self._states.pop(target, None)
        self._uncertain.discard(target)
        self._resized.discard(target)
        self.missed.forget(target)

    def set_capacity(self, target: TargetId, blocks: int, gpu_blocks: int | None = None) -> None:
        """Set the number of blocks that the target's cache holds, and that its GPU has, as read from its
        metrics.
        """
        if (state := self._states.get(target)) is None:
            return
        state.cache_blocks = gpu_blocks
        if state.capacity_blocks != blocks:  # every metrics page repeats it
            state.capacity_blocks = blocks
            self._estimator.invalidate(target)
            self._refresh(target, state)

    # snapshots

    def snapshot_targets(self) -> list[TargetId]:
        """Return the targets with an event stream, restored ones included."""
        return [*self._restored, *(target for target, state in self._states.items() if state.sequencer is not None)]

    def snapshot(self, target: TargetId) -> SavedTarget | None:
        """Return the known blocks of `target`; None if there are none, or its last batch is not wholly applied yet.
        One step of the event loop, 30 ns per block.
        """
        if (state := self._states.get(target)) is not None and state.backlog:
            return None
        if state is not None and state.sequencer is not None:
            cursor, stored_blocks = state.sequencer.cursor, state.stored_blocks
        elif target in self._restored:
            cursor, stored_blocks = self._restored[target]
        else:
            return None
        blocks = self._index.snapshot(target)
        return None if blocks is None or cursor is None else SavedTarget(target, blocks, cursor, stored_blocks)

    def restore(self, saved: SavedTarget) -> None:
        """Load the snapshot of a target that has not joined yet."""
        self._index.restore(saved.target, saved.blocks)
        self._restored[saved.target] = RestoredStream(saved.cursor, saved.stored_blocks)

    def discard_restored(self) -> None:
        """Drop the restored blocks of targets that have not joined by now."""
        for target in self._restored:
            self._index.discard_restored(target)
        self._restored.clear()

    # events

    def on_connected(self, target: TargetId) -> int | None:
        """Handle a connect or reconnect of the stream of `target`."""
        sequencer = self.sequencer(target)
        return None if sequencer is None else self._execute(target, sequencer.on_connected(self._clock.now()))

    def on_batch(self, target: TargetId, batch: EventBatch) -> int | None:
        """Handle a live batch of `target`."""
        if (sequencer := self.sequencer(target)) is None:
            return None
        self._count(target, batch)
        return self._execute(target, sequencer.on_live(batch, self._clock.now(), self._clock.wall()))

    def on_replayed(self, target: TargetId, batch: EventBatch) -> int | None:
        """Handle a batch of the running replay; a returned number requests another replay in its place."""
        if (sequencer := self.sequencer(target)) is None:
            return None
        self._count(target, batch)
        return self._execute(target, sequencer.on_replayed(batch, self._clock.now()))

    def on_replay_end(self, target: TargetId, complete: bool) -> int | None:
        """Handle the end of a replay; `complete`: with the engine's end marker."""
        if (sequencer := self.sequencer(target)) is None:
            return None
        return self._execute(target, sequencer.on_replay_end(complete, self._clock.now()))

    def on_malformed(self, target: TargetId, reason: str) -> None:
        """Count a message of `target` that could not be decoded."""
        if (state := self._states.get(target)) is not None:
            state.malformed += 1

    def clear(self, target: TargetId) -> None:
        """Forget the blocks of `target`, as if its engine had announced an empty cache; a no-op before it joins."""
        if (state := self._states.get(target)) is not None:
            state.begin_empty()
            self._execute(target, [ForgetTarget()])

    def begin_late(self, target: TargetId) -> None:
        """Forget the blocks of `target`, because answers contradicted them, and follow its stream as if it had been
        joined just now; a no-op before it joins.
        """
        if (state := self._states.get(target)) is not None:
            state.begin_late()
            self._execute(target, [ForgetTarget()])

    def count_repeated(self, sent: SentPrompt) -> int:
        """Return how many blocks its target has announced since a prompt was sent although the index had them. 0 if
        it has left, or runs a hybrid model, whose engine computes some held blocks again.
        """
        target = sent.speculative.target
        if target not in self._states or target in self._index.hybrid:
            return 0
        return self._index.repeated_blocks(target) - sent.repeated_blocks

    def resume(self, target: TargetId) -> bool:
        """Apply the next piece of the rest of earlier batches. Return False if nothing was left."""
        if (state := self._states.get(target)) is None or not state.backlog:
            return False
        self._apply_piece(target, state)
        return True

    def sweep(self) -> bool:
        """Clean a piece of the entries that forgotten targets left behind. Return False if nothing was left."""
        return self._index.sweep()

    def over_bounds(self, target: TargetId) -> tuple[IndexLimit, str] | None:
        """Return which bound the events of `target` exceeded since it joined, and how; None: no bound."""
        return self._bounds.over(target)

    # requests

    def block_tokens(self, target: TargetId) -> int | None:
        """Return the block size in tokens of `target`, as in `BlockIndex.block_tokens`."""
        return self._index.block_tokens(target)

    def held_tokens(self, target: TargetId, block_tokens: int | None, trusted: bool) -> int | None:
        """Return the estimated number of tokens that `target` holds, of all prompts and in every tier; None:
        unknown. O(1).

        The caller passes the block size and whether the target's events are `trusted`, as in `estimate_overlaps`.
        """
        if (state := self._states.get(target)) is None:
            return None
        sequencer, blocks = state.sequencer, self._index.held_blocks(target)
        if sequencer is None or not sequencer.trusted or not trusted:
            sent = self._approximate.count(target, self._clock.now())
            blocks = max(sent, blocks) if trusted else sent  # before a replay the index is behind, not wrong
            return None if block_tokens is None else blocks * block_tokens
        if not blocks:
            return 0 if state.certain else None
        return None if block_tokens is None else blocks * block_tokens

    def take_resized(self) -> Collection[TargetId]:
        """Return the targets whose block size changed since the last call."""
        if not self._resized:
            return ()
        resized, self._resized = self._resized, set()
        return resized

    def overlap_groups(self, prompt: TokenizedPrompt) -> OverlapGroups:
        """Return the overlaps of all joined targets with a prompt, in groups, including targets of other models."""
        return group_overlaps(self._index, self._speculative, prompt, self._uncertain, self._clock.now())

    def estimate_overlaps(
        self,
        prompt: TokenizedPrompt,
        block_tokens: Mapping[TargetId, int | None],
        distrusted: frozenset[TargetId],
        drafting: frozenset[TargetId] = frozenset(),
    ) -> dict[TargetId, OverlapEstimate]:
        """Return one estimate per target of `block_tokens` (block sizes). `distrusted` ones contradicted the index,
        `drafting` ones compute the last block of every hit again.
        """
        return self._estimator.estimate(prompt, block_tokens, distrusted, drafting, self._clock.now())

    def add_sent(self, target: TargetId, prompt: TokenizedPrompt, estimate: OverlapEstimate) -> SentPrompt | None:
        """Record that a prompt is sent to `target`, given its `estimate` for that target. None if the block size is
        unknown.
        """
        if estimate.block_tokens is None:
            return None
        keys = prompt.keys[estimate.block_tokens]
        approximate = estimate.overlap is not None and estimate.overlap.source == "approximate"
        tails = self._tails_left(target, prompt, estimate) if target in self._index.hybrid else ()
        speculative = self._speculative.add(target, keys[estimate.held_blocks :], self._clock.now(), tails)
        late = self.missed.send(target, prompt) if self.missed.late else None
        repeated = self._index.repeated_blocks(target)
        return SentPrompt(speculative, keys if approximate or target in self._uncertain else (), late, repeated)

    def _tails_left(self, target: TargetId, prompt: TokenizedPrompt, estimate: OverlapEstimate) -> list[Key]:
        """Return the last keys of the tails that a prompt makes a hybrid model's engine keep: where the prompt ends,
        and where it parts from what the engine holds.
        """
        size, overlap = estimate.block_tokens, estimate.overlap
        assert size is not None
        keys = usable(prompt, size)
        ends = {self._index.find_end(target, len(keys))} if prompt.complete else set()
        if overlap is not None and estimate.recomputed_tokens:
            ends.add(overlap.expected_tokens // size)
        return [keys[blocks - 1] for blocks in ends if blocks]

    def on_first_byte(self, sent: SentPrompt) -> None:
        """Record that the answer has begun, so the target has computed the prompt."""
        now = self._clock.now()
        self._speculative.on_first_byte(sent.speculative, now)
        if sent.approximate and not sent.speculative.forgotten:
            self._approximate.add(sent.speculative.target, sent.approximate, now)

    def on_computed(self, sent: SentPrompt, sent_at: float) -> bool:
        """Record that the target has answered the prompt, sent at `sent_at`, and computed new blocks for it. Return
        whether its stream became silent.
        """
        target = sent.speculative.target
        sequencer = self.sequencer(target)
        if sequencer is None or sequencer.silent:
            return False
        sequencer.on_answer(sent_at, self._clock.now())
        if sequencer.silent:
            self._estimator.invalidate(target)
            self._refresh(target, self._states[target])
        return sequencer.silent

    def on_failure(self, sent: SentPrompt) -> None:
        """Record that the request ended without a first byte."""
        self._speculative.discard(sent.speculative)

    def keyless_blocks(self, target: TargetId) -> int:
        """Return how many cached blocks of a stream joined late belong to unknown prompts."""
        return 0 if (state := self._states.get(target)) is None else state.keyless_blocks

    def describe_stream(self, target: TargetId) -> EventStream | None:
        """Return the state of the event stream; None for a target that has not joined."""
        if (state := self._states.get(target)) is None:
            return None
        stats = self._index.stats(target)
        skipped = state.skipped | Counter(partial=stats.partial)
        counts = state.batches, state.malformed, skipped, state.turned_over, state.overfull
        return EventStream(state.sequencer, stats, *counts, state.keyless_blocks, state.recalled_blocks)

    def sequencer(self, target: TargetId) -> EventSequencer | None:
        """Return the state of the event stream without its sizes; None: no stream, or the target has left."""
        return None if (state := self._states.get(target)) is None else state.sequencer

    def holders(self, key: Key) -> tuple[list[TargetId], list[TargetId]]:
        """Return the targets that hold a block on the GPU, and those that hold it in a slower tier only."""
        return self._index.holders(key)

    def copies(self, tier: Tier) -> BlockCopies:
        """Return how many blocks all targets hold in a tier, and how many different ones."""
        return self._index.copies(tier)

    # internals

    def _count(self, target: TargetId, batch: EventBatch) -> None:
        self._states[target].count(batch)
        if batch.skipped:
            self._bounds.check_skipped(target, batch.skipped)

    def _execute(self, target: TargetId, steps: Sequence[Step]) -> int | None:
        """Apply the first piece of `steps`; `resume` applies the others. Return where a replay must begin."""
        state, replay_from = self._states[target], None
        for step in steps:
            match step:
                case ApplyBatch(events):
                    state.backlog.extend(events)
                case ForgetTarget():
                    state.backlog.clear()
                    state.backlog.append(step)
                case RequestReplay(start_seq):
                    replay_from = start_seq
        self._apply_piece(target, state)
        return replay_from

    def _apply_piece(self, target: TargetId, state: TargetCacheState) -> None:
        self._estimator.invalidate(target)
        applied, backlog = 0, state.backlog
        while backlog and applied < APPLY_BLOCKS:
            event = backlog.popleft()
            if isinstance(event, ForgetTarget | BlocksCleared):
                after_gap = isinstance(event, ForgetTarget) and event.gap
                likely = self._index.keys(target) if after_gap else ()  # some of these were evicted since
                self._index.forget(target)  # a clearing names no tier: forgetting all of them is the safe reading
                self._forget_sent(target)
                if likely:
                    self._approximate.adopt(target, likely, self._clock.now())
                state.stored_blocks = 0
                applied += 1
            else:
                applied += self._apply(target, state, event)
        state.stored_blocks -= self._index.take_uncounted(target)
        if state.cache_blocks is not None and not self._index.fits(target, state.cache_blocks):
            log.warning(
                "%s: its events leave more blocks than the %d of its GPU: index of this target cleared",
                target,
                state.cache_blocks,
            )
            self._index.forget(target)
            self._forget_sent(target)
            state.overfull += 1
            state.begin_late()
        self._bounds.count(target, state, applied)
        self._refresh(target, state)

    def _refresh(self, target: TargetId, state: TargetCacheState) -> None:
        """Update the derived sets after any change of `state`."""
        self.missed.update(target, state)
        if state.certain:
            self._uncertain.discard(target)
        else:
            self._uncertain.add(target)
        if (size := self._index.block_tokens(target)) != state.block_tokens:
            state.block_tokens = size
            self._resized.add(target)
            if size is not None:
                self._bounds.add_block_size(target, state, size)

    def _apply(self, target: TargetId, state: TargetCacheState, event: BlockEvent) -> int:
        """Apply one event. Return the number of its blocks, plus one for the event."""
        if isinstance(event, BlocksPooled):
            if self.observer is not None:
                self.observer.on_pooled(state.model, event)
        else:
            before = self._index.units.get(target)
            self._speculative.confirm(target, self._index.apply(target, event))
            unit = self._index.units.get(target)
            if unit != before:  # what was not found for blocks may be found for units
                state.chain, state.unknown_hashing = None, False
            if isinstance(event, BlocksStored) and event.tier is Tier.GPU:
                state.stored_blocks += len(event.hashes)
                if event.parent is None:
                    if unit is not None or target in self.missed.late:
                        self.missed.observe(state, event, unit)
                    if self.observer is not None:
                        self.observer.on_stored(state.model, event)
        return 1 + len(event.hashes)

    def _on_recalled(self, target: TargetId, keys: list[Key]) -> None:
        """Handle blocks that entered the GPU tier by evidence other than an event."""
        self._speculative.confirm(target, keys)
        self._estimator.invalidate(target)
        self._refresh(target, self._states[target])

    def _forget_sent(self, target: TargetId) -> None:
        self._estimator.invalidate(target)
        self._speculative.forget(target)
        self._approximate.forget(target)
