"""What is known of each target's cache, where those who tell of it meet those who ask.

    frames -> engines/ -> Batch -> StreamBook -> Index --+
                                                         +--> beliefs(prompt) -> one Belief per target
    what we sent there (expected for seconds; where -----+
    no stream is trusted, approximately for minutes)

What is believed where the two disagree, or where neither knows, is decided in `belief.py`. Knows nothing of sockets,
load or health. One object for all models: keys differ by model, so targets cannot mix.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from router.clock import Clock
from router.kvcache.event_sequencer import ApplyBatch, EventSequencer, ForgetTarget, RequestReplay, Step, StreamCursor
from router.kvcache.events import BlocksCleared, BlocksPooled, BlocksStored, Event, EventBatch, Key, TargetId, Tier
from router.kvcache.index import BlockIndex, IndexStats
from router.kvcache.overlap_estimate import OverlapEstimate, OverlapEstimator
from router.kvcache.overlap_groups import OverlapGroups, outline
from router.kvcache.snapshot_format import SavedTarget
from router.kvcache.speculative import ApproximateBlocks, SpeculativeBlocks, SpeculativePrompt
from router.kvcache.target_state import TargetCacheState
from router.kvcache.tokenized_prompt import TokenizedPrompt


class SentPrompt(NamedTuple):
    """A prompt on its way to a target: to be ended by `KvIndexer.began` or `failed`."""

    speculative: SpeculativePrompt
    approximate: Sequence[Key]  # what the target will approximately hold; empty where its events will tell


class StoredBlockObserver(Protocol):
    """Who else wants to see what engines of a model store: the pool, which must hash as they do."""

    def on_stored(self, model: str, event: BlocksStored) -> None:
        """Blocks from token 0 on entered an engine's GPU cache."""

    def on_pooled(self, model: str, event: BlocksPooled) -> None:
        """An engine put blocks into the shared pool."""


class EventStream(NamedTuple):
    """One target's event stream, for people and metrics."""

    sequencer: EventSequencer | None  # None: it has none
    stats: IndexStats
    batches: int  # heard or replayed
    malformed: int
    skipped: Mapping[str, int]
    turned_over: bool  # everything it can hold has been announced since we listen


class _Saved(NamedTuple):
    """What is restored of a target beside its blocks."""

    cursor: StreamCursor
    stored_blocks: int


class KvIndexer:
    """Also the event feeds' `Hearing`: the methods that answer with a number mean "replay from here, please"."""

    def __init__(
        self,
        index: BlockIndex,
        expected: SpeculativeBlocks,
        approximate: ApproximateBlocks,
        clock: Clock,
        witness: StoredBlockObserver | None = None,
    ) -> None:
        self._index = index
        self._expected = expected
        self._approximate = approximate
        self._clock = clock
        self._witness = witness
        self._stories: dict[TargetId, TargetCacheState] = {}
        self._beliefs = OverlapEstimator(index, expected, approximate, self._stories)
        self._saved: dict[TargetId, _Saved] = {}  # restored, and not joined yet
        self._unsure: set[TargetId] = set()  # whose story is not `sure`
        self._sized: set[TargetId] = set()  # that told another block size than before, and nobody asked since

    # who is there

    def join(self, target: TargetId, model: str, *, stream: bool, replayable: bool) -> None:
        """`target` serves `model`; what was known under its name is forgotten, unless it is from a snapshot: that is
        taken up again, unconfirmed."""
        self._forget_sent(target)
        self._stories[target] = story = TargetCacheState(model)
        self._unsure.add(target)  # until its first batch
        saved = self._saved.pop(target, None)
        if stream and saved is not None and self._index.join_restored(target, model):
            story.sequencer = EventSequencer.resume(replayable, saved.cursor)
            story.stored_blocks = saved.stored_blocks
            self._look_at(target, story)
            return
        self._index.join(target, model)
        if stream:
            story.sequencer = EventSequencer(replayable)

    def leave(self, target: TargetId) -> None:
        self._forget_sent(target)
        self._index.leave(target)
        self._stories.pop(target, None)
        self._unsure.discard(target)
        self._sized.discard(target)

    def set_capacity(self, target: TargetId, blocks: int) -> None:
        """Its cache's size, as its metrics page tells."""
        if (story := self._stories.get(target)) is not None:
            story.capacity_blocks = blocks
            self._beliefs.invalidate(target)
            self._look_at(target, story)

    # over a restart of the router

    def snapshot_targets(self) -> list[TargetId]:
        """Whose caches we know something of, by their streams."""
        return [*self._saved, *(target for target, story in self._stories.items() if story.sequencer is not None)]

    def snapshot(self, target: TargetId) -> SavedTarget | None:
        """What is known of it now, in one piece; None: nothing. 30 ns per block."""
        story = self._stories.get(target)
        if story is not None and story.sequencer is not None:
            cursor, stored_blocks = story.sequencer.cursor, story.stored_blocks
        elif target in self._saved:
            cursor, stored_blocks = self._saved[target]
        else:
            return None
        shelf = self._index.snapshot(target)
        return None if shelf is None or cursor is None else SavedTarget(target, shelf, cursor, stored_blocks)

    def restore(self, saved: SavedTarget) -> None:
        """What was known of a target that has not joined yet."""
        self._index.restore(saved.target, saved.blocks)
        self._saved[saved.target] = _Saved(saved.cursor, saved.stored_blocks)

    def discard_restored(self) -> None:
        """Whoever was restored and has not joined by now is forgotten."""
        for target in self._saved:
            self._index.discard_restored(target)
        self._saved.clear()

    # what engines say

    def on_connected(self, target: TargetId) -> int | None:
        book = self._book(target)
        return None if book is None else self._take(target, book.on_connected(self._clock.now()))

    def on_batch(self, target: TargetId, batch: EventBatch) -> int | None:
        book = self._book(target)
        if book is None:
            return None
        self._stories[target].count(batch)
        return self._take(target, book.on_live(batch, self._clock.now(), self._clock.wall()))

    def on_replayed(self, target: TargetId, batch: EventBatch) -> None:
        if (book := self._book(target)) is not None:
            self._stories[target].count(batch)
            self._take(target, book.on_replayed(batch, self._clock.now()))

    def on_replay_end(self, target: TargetId, complete: bool) -> int | None:
        book = self._book(target)
        return None if book is None else self._take(target, book.on_replay_end(complete, self._clock.now()))

    def on_malformed(self, target: TargetId, reason: str) -> None:
        if (story := self._stories.get(target)) is not None:
            story.malformed += 1

    # what requests ask

    def block_tokens(self, target: TargetId) -> int | None:
        return self._index.block_tokens(target)

    def held_tokens(self, target: TargetId, block_tokens: int | None, believed: bool) -> int | None:
        """All that `target` is believed to hold, of whatever prompts and in every tier; None: unknown. Its block size
        and whether its promises are `believed` come from the caller, as in `beliefs`. O(1).
        """
        if (story := self._stories.get(target)) is None:
            return None
        book, blocks = story.sequencer, self._index.held_blocks(target)
        if book is None or not book.trusted or not believed:
            sent = self._approximate.count(target, self._clock.now())
            blocks = max(sent, blocks) if believed else sent  # between two replays the index is behind, not wrong
            return None if block_tokens is None else blocks * block_tokens
        if not blocks:
            return None if book.joined_late and not story.turned_over else 0
        return None if block_tokens is None else blocks * block_tokens

    def take_resized(self) -> Collection[TargetId]:
        """Targets that told another block size than before; each once."""
        if not self._sized:
            return ()
        sized, self._sized = self._sized, set()
        return sized

    def overlap_groups(self, known: TokenizedPrompt) -> OverlapGroups:
        """What everybody who joined holds of a prompt, whatever they serve."""
        return outline(self._index, self._expected, known, self._unsure, self._clock.now())

    def estimate_overlaps(
        self, known: TokenizedPrompt, block_tokens: Mapping[TargetId, int | None], distrusted: frozenset[TargetId]
    ) -> dict[TargetId, OverlapEstimate]:
        """One belief per target of `block_tokens`, which names their block sizes. `distrusted`: they broke promises."""
        return self._beliefs.estimate(known, block_tokens, distrusted, self._clock.now())

    def add_sent(self, target: TargetId, known: TokenizedPrompt, belief: OverlapEstimate) -> SentPrompt | None:
        """A prompt goes there now; `belief` is what was believed of it there. None: nothing to expect."""
        if belief.block_tokens is None:
            return None
        keys = known.keys[belief.block_tokens]
        approximate = belief.overlap is not None and belief.overlap.source == "approximate"
        expectation = self._expected.add(target, keys[belief.held_blocks :], self._clock.now())
        return SentPrompt(expectation, keys if approximate else ())

    def on_first_byte(self, sent: SentPrompt) -> None:
        """Its answer has begun: the prompt was computed there."""
        now = self._clock.now()
        self._expected.on_first_byte(sent.speculative, now)
        if sent.approximate:
            self._approximate.add(sent.speculative.target, sent.approximate, now)

    def on_failure(self, sent: SentPrompt) -> None:
        """It ended without that."""
        self._expected.discard(sent.speculative)

    def describe_stream(self, target: TargetId) -> EventStream | None:
        """None: not a target that joined."""
        if (story := self._stories.get(target)) is None:
            return None
        stats = self._index.stats(target)
        return EventStream(story.sequencer, stats, story.batches, story.malformed, story.skipped, story.turned_over)

    # parts of the above

    def _book(self, target: TargetId) -> EventSequencer | None:
        story = self._stories.get(target)  # None: it left, and a last message was on its way
        return story.sequencer if story is not None else None

    def _take(self, target: TargetId, steps: Sequence[Step]) -> int | None:
        self._beliefs.invalidate(target)
        replay_from = None
        for step in steps:
            match step:
                case ApplyBatch(events):
                    self._apply(target, events)
                case ForgetTarget():
                    self._index.forget(target)
                    self._forget_sent(target)
                    self._stories[target].stored_blocks = 0
                case RequestReplay(start_seq):
                    replay_from = start_seq
        self._look_at(target, self._stories[target])
        return replay_from

    def _look_at(self, target: TargetId, story: TargetCacheState) -> None:
        """After anything that changes what it is."""
        if story.certain:
            self._unsure.discard(target)
        else:
            self._unsure.add(target)
        if (size := self._index.block_tokens(target)) != story.block_tokens:
            story.block_tokens = size
            self._sized.add(target)

    def _apply(self, target: TargetId, events: Sequence[Event]) -> None:
        story = self._stories[target]
        for event in events:
            if isinstance(event, BlocksPooled):
                if self._witness is not None:
                    self._witness.on_pooled(story.model, event)
                continue
            self._expected.confirm(target, self._index.apply(target, event))
            if isinstance(event, BlocksStored) and event.tier is Tier.GPU:
                story.stored_blocks += len(event.hashes)
                if self._witness is not None and event.parent is None:
                    self._witness.on_stored(story.model, event)
            elif isinstance(event, BlocksCleared):
                self._approximate.forget(target)

    def _forget_sent(self, target: TargetId) -> None:
        self._beliefs.invalidate(target)
        self._expected.forget(target)
        self._approximate.forget(target)
