"""What we believe each target holds: events where they can be trusted, our own sending where not, as one answer.

    frames -> engines/ -> Batch -> StreamBook -> Index --+
                                                         +--> beliefs(prompt) -> one Belief per target
    what we sent there (expected for seconds; where -----+
    no stream is trusted, approximately for minutes)

Three rules decide between them. A trusted stream's index is the truth. A target without a stream, or whose stream or
promises are not trusted, is judged by the prompts that it began to answer. To either is added what is on its way
there, of which neither can tell yet (`expected_tokens`). And on a stream that was joined late, "holds nothing" means
*unknown* (None) until as many blocks have been stored as the target can hold: what it cached before we listened has
left by then.

Knows nothing of sockets, load or health. One object for all models: keys differ by model, so targets cannot mix.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from router.blocks.events import Batch, Cleared, Event, Key, Pooled, Stored, TargetId, Tier
from router.blocks.expected import Approximate, Expectation, Expected
from router.blocks.index import Held, Index, IndexStats
from router.blocks.known import Known
from router.blocks.outline import NO_OVERLAP, Outline, outline, usable
from router.blocks.saved import SavedTarget
from router.blocks.stream import Apply, AskReplay, Cursor, Forget, Step, StreamBook
from router.clock import Clock
from scorers.contract import Overlap


class Belief(NamedTuple):
    """What one target is believed to hold of one prompt.

    `promised_tokens` is what its events say, in any tier of its own, whether they are trusted or not (None: it has no
    stream): promises are held against deliveries even while they are not used, so that trust can come back.
    """

    overlap: Overlap | None
    promised_tokens: int | None
    block_tokens: int | None  # None: it has told no size yet
    held_blocks: int  # leading ones that need not be expected: they are on its GPU, by events or approximately


class Sent(NamedTuple):
    """A prompt on its way to a target: to be ended by `Knowledge.began` or `failed`."""

    expectation: Expectation
    approximate: Sequence[Key]  # what the target will approximately hold; empty where its events will tell


NOTHING = Held(0, 0, 0)
LATELY_S = 0.1
HOLDS_NOTHING = Belief(NO_OVERLAP, 0, None, 0)


class _Lately(NamedTuple):
    held: Held
    belief: Belief


class Witness(Protocol):
    """Who else wants to see what engines of a model store: the pool, which must hash as they do."""

    def stored(self, model: str, event: Stored) -> None:
        """Blocks from token 0 on entered an engine's GPU cache."""

    def pooled(self, model: str, event: Pooled) -> None:
        """An engine put blocks into the shared pool."""


class Stream(NamedTuple):
    """One target's event stream, for people and metrics."""

    book: StreamBook | None  # None: it has none
    stats: IndexStats
    batches: int  # heard or replayed
    malformed: int
    skipped: Mapping[str, int]
    turned_over: bool  # everything it can hold has been announced since we listen


class _Target:
    """The parts of one target's story that belong together."""

    __slots__ = (
        "batches", "block_tokens", "book", "capacity_blocks", "malformed", "model", "skipped", "stored_blocks"
    )  # fmt: skip

    def __init__(self, model: str) -> None:
        self.model = model
        self.book: StreamBook | None = None
        self.block_tokens: int | None = None
        self.capacity_blocks: int | None = None
        self.stored_blocks = 0  # on its GPU, since what is known of it began
        self.batches = 0
        self.malformed = 0
        self.skipped: Counter[str] = Counter()

    @property
    def turned_over(self) -> bool:
        return self.capacity_blocks is not None and self.stored_blocks >= self.capacity_blocks

    @property
    def sure(self) -> bool:
        """What the index says of it is what there is to believe, and what it does not say, too."""
        book = self.book
        return book is not None and book.trusted and (not book.joined_late or self.turned_over)


class _Saved(NamedTuple):
    """What is restored of a target beside its blocks."""

    cursor: Cursor
    stored_blocks: int


class Knowledge:
    """Also the event feeds' `Hearing`: the methods that answer with a number mean "replay from here, please"."""

    def __init__(
        self,
        index: Index,
        expected: Expected,
        approximate: Approximate,
        clock: Clock,
        witness: Witness | None = None,
    ) -> None:
        self._index = index
        self._expected = expected
        self._approximate = approximate
        self._clock = clock
        self._witness = witness
        self._targets: dict[TargetId, _Target] = {}
        # Of targets with a trusted stream, what was believed last: most hold as much of the next prompt, nothing or the
        # same beginning. Kept until the target tells something; ages are good to `LATELY_S`.
        self._lately: dict[TargetId, _Lately] = {}
        self._lately_since = 0.0
        self._saved: dict[TargetId, _Saved] = {}  # restored, and not joined yet
        self._unsure: set[TargetId] = set()  # whose story is not `sure`
        self._sized: set[TargetId] = set()  # that told another block size than before, and nobody asked since

    # who is there

    def join(self, target: TargetId, model: str, *, stream: bool, replayable: bool) -> None:
        """`target` serves `model`; what was known under its name is forgotten, unless it is from a snapshot: that is
        taken up again, unconfirmed."""
        self._forget_sent(target)
        self._targets[target] = story = _Target(model)
        self._unsure.add(target)  # until its first batch
        saved = self._saved.pop(target, None)
        if stream and saved is not None and self._index.wake(target, model):
            story.book = StreamBook.resumed(replayable, saved.cursor)
            story.stored_blocks = saved.stored_blocks
            self._look_at(target, story)
            return
        self._index.join(target, model)
        if stream:
            story.book = StreamBook(replayable)

    def leave(self, target: TargetId) -> None:
        self._forget_sent(target)
        self._index.leave(target)
        self._targets.pop(target, None)
        self._unsure.discard(target)
        self._sized.discard(target)

    def holds_at_most(self, target: TargetId, blocks: int) -> None:
        """Its cache's size, as its metrics page tells."""
        if (story := self._targets.get(target)) is not None:
            story.capacity_blocks = blocks
            self._lately.pop(target, None)
            self._look_at(target, story)

    # over a restart of the router

    def saveable(self) -> list[TargetId]:
        """Whose caches we know something of, by their streams."""
        return [*self._saved, *(target for target, story in self._targets.items() if story.book is not None)]

    def saved(self, target: TargetId) -> SavedTarget | None:
        """What is known of it now, in one piece; None: nothing. 30 ns per block."""
        story = self._targets.get(target)
        if story is not None and story.book is not None:
            cursor, stored_blocks = story.book.cursor, story.stored_blocks
        elif target in self._saved:
            cursor, stored_blocks = self._saved[target]
        else:
            return None
        shelf = self._index.saved(target)
        return None if shelf is None or cursor is None else SavedTarget(target, shelf, cursor, stored_blocks)

    def restore(self, saved: SavedTarget) -> None:
        """What was known of a target that has not joined yet."""
        self._index.restore(saved.target, saved.shelf)
        self._saved[saved.target] = _Saved(saved.cursor, saved.stored_blocks)

    def give_up(self) -> None:
        """Whoever was restored and has not joined by now is forgotten."""
        for target in self._saved:
            self._index.give_up(target)
        self._saved.clear()

    # what engines say

    def stream_connected(self, target: TargetId) -> int | None:
        book = self._book(target)
        return None if book is None else self._take(target, book.connected(self._clock.now()))

    def heard(self, target: TargetId, batch: Batch) -> int | None:
        book = self._book(target)
        if book is None:
            return None
        self._count(target, batch)
        return self._take(target, book.live(batch, self._clock.now(), self._clock.wall()))

    def replayed(self, target: TargetId, batch: Batch) -> None:
        if (book := self._book(target)) is not None:
            self._count(target, batch)
            self._take(target, book.replayed(batch, self._clock.now()))

    def replay_ended(self, target: TargetId, complete: bool) -> int | None:
        book = self._book(target)
        return None if book is None else self._take(target, book.replay_ended(complete, self._clock.now()))

    def malformed(self, target: TargetId, reason: str) -> None:
        if (story := self._targets.get(target)) is not None:
            story.malformed += 1

    # what requests ask

    def block_tokens(self, target: TargetId) -> int | None:
        return self._index.block_tokens(target)

    def held_tokens(self, target: TargetId, block_tokens: int | None, believed: bool) -> int | None:
        """All that `target` is believed to hold, of whatever prompts and in every tier; None: unknown. Its block size
        and whether its promises are `believed` come from the caller, as in `beliefs`. O(1).
        """
        if (story := self._targets.get(target)) is None:
            return None
        book, blocks = story.book, self._index.held_blocks(target)
        if book is None or not book.trusted or not believed:
            sent = self._approximate.blocks(target, self._clock.now())
            blocks = max(sent, blocks) if believed else sent  # between two replays the index is behind, not wrong
            return None if block_tokens is None else blocks * block_tokens
        if not blocks:
            return None if book.joined_late and not story.turned_over else 0
        return None if block_tokens is None else blocks * block_tokens

    def newly_sized(self) -> Collection[TargetId]:
        """Targets that told another block size than before; each once."""
        if not self._sized:
            return ()
        sized, self._sized = self._sized, set()
        return sized

    def outline(self, known: Known) -> Outline:
        """What everybody who joined holds of a prompt, whatever they serve."""
        return outline(self._index, self._expected, known, self._unsure, self._clock.now())

    def beliefs(
        self, known: Known, block_tokens: Mapping[TargetId, int | None], distrusted: frozenset[TargetId]
    ) -> dict[TargetId, Belief]:
        """One belief per target of `block_tokens`, which names their block sizes. `distrusted`: they broke promises."""
        now = self._clock.now()
        beliefs: dict[TargetId, Belief] = {}
        for target, its_size in block_tokens.items():
            if its_size is None and (book := self._book(target)) is not None and book.trusted and not book.joined_late:
                beliefs[target] = HOLDS_NOTHING  # not one block was stored there yet, or its size would be known
        for size in {size for size in block_tokens.values() if size is not None}:
            if size not in known.keys:  # it appeared while the prompt was being tokenised
                continue
            targets = [target for target, its_size in block_tokens.items() if its_size == size]
            self._add_beliefs(beliefs, usable(known, size), size, targets, distrusted, now)
        return beliefs

    def _add_beliefs(
        self,
        beliefs: dict[TargetId, Belief],
        keys: Sequence[Key],
        size: int,
        targets: Sequence[TargetId],
        distrusted: frozenset[TargetId],
        now: float,
    ) -> None:
        """Of `targets`, whose blocks have `size`."""
        if now - self._lately_since > LATELY_S:
            self._lately.clear()
            self._lately_since = now
        reach, lately = self._index.match(keys, targets), self._lately
        bringing: dict[int, Collection[TargetId]] = {}  # by how much they hold: who gets the block after that
        for target in targets:
            held = reach.get(target, NOTHING)
            if (soon := bringing.get(held.gpu)) is None:
                soon = self._expected.bringing(keys[held.gpu], now) if held.gpu < len(keys) else ()
                bringing[held.gpu] = soon
            looked_at = target in soon or target in distrusted
            kept = lately.get(target)
            if kept is not None and kept.held == held and kept.belief.block_tokens == size and not looked_at:
                beliefs[target] = kept.belief
                continue
            belief = beliefs[target] = self._belief(target, keys, size, held, target not in distrusted, now)
            if not looked_at and (book := self._book(target)) is not None and book.trusted:
                lately[target] = _Lately(held, belief)

    def sent(self, target: TargetId, known: Known, belief: Belief) -> Sent | None:
        """A prompt goes there now; `belief` is what was believed of it there. None: nothing to expect."""
        if belief.block_tokens is None:
            return None
        keys = known.keys[belief.block_tokens]
        approximate = belief.overlap is not None and belief.overlap.source == "approximate"
        expectation = self._expected.sent(target, keys[belief.held_blocks :], self._clock.now())
        return Sent(expectation, keys if approximate else ())

    def began(self, sent: Sent) -> None:
        """Its answer has begun: the prompt was computed there."""
        now = self._clock.now()
        self._expected.first_byte(sent.expectation, now)
        if sent.approximate:
            self._approximate.sent(sent.expectation.target, sent.approximate, now)

    def failed(self, sent: Sent) -> None:
        """It ended without that."""
        self._expected.failed(sent.expectation)

    def stream(self, target: TargetId) -> Stream | None:
        """None: not a target that joined."""
        if (story := self._targets.get(target)) is None:
            return None
        stats = self._index.stats(target)
        return Stream(story.book, stats, story.batches, story.malformed, story.skipped, story.turned_over)

    # parts of the above

    def _book(self, target: TargetId) -> StreamBook | None:
        story = self._targets.get(target)  # None: it left, and a last message was on its way
        return story.book if story is not None else None

    def _count(self, target: TargetId, batch: Batch) -> None:
        story = self._targets[target]
        story.batches += 1
        story.skipped.update(batch.skipped)

    def _take(self, target: TargetId, steps: Sequence[Step]) -> int | None:
        self._lately.pop(target, None)
        replay_from = None
        for step in steps:
            match step:
                case Apply(events):
                    self._apply(target, events)
                case Forget():
                    self._index.forget(target)
                    self._forget_sent(target)
                    self._targets[target].stored_blocks = 0
                case AskReplay(start_seq):
                    replay_from = start_seq
        self._look_at(target, self._targets[target])
        return replay_from

    def _look_at(self, target: TargetId, story: _Target) -> None:
        """After anything that changes what it is."""
        if story.sure:
            self._unsure.discard(target)
        else:
            self._unsure.add(target)
        if (size := self._index.block_tokens(target)) != story.block_tokens:
            story.block_tokens = size
            self._sized.add(target)

    def _apply(self, target: TargetId, events: Sequence[Event]) -> None:
        story = self._targets[target]
        for event in events:
            if isinstance(event, Pooled):
                if self._witness is not None:
                    self._witness.pooled(story.model, event)
                continue
            self._expected.stored(target, self._index.apply(target, event))
            if isinstance(event, Stored) and event.tier is Tier.GPU:
                story.stored_blocks += len(event.hashes)
                if self._witness is not None and event.parent is None:
                    self._witness.stored(story.model, event)
            elif isinstance(event, Cleared):
                self._approximate.forget(target)

    def _forget_sent(self, target: TargetId) -> None:
        self._lately.pop(target, None)
        self._expected.forget(target)
        self._approximate.forget(target)

    def _belief(
        self, target: TargetId, keys: Sequence[Key], size: int, held: Held, believed: bool, now: float
    ) -> Belief:
        story = self._targets.get(target)
        book = story.book if story is not None else None
        promised = None if book is None else held.disk * size
        heard_s = None if book is None else book.last_heard_s
        # To the millisecond, as views are logged; a third of what `round` costs.
        age_s = None if heard_s is None else ((now - heard_s) * 1e3 + 0.5) // 1 / 1e3
        if story is None or book is None or not book.trusted or not believed:
            likely = self._approximate.run(target, keys, now)
            if believed:  # between two replays the index is behind, not wrong
                likely = max(likely, held.gpu)
            expected = self._expected.run(target, keys, likely, now)
            tokens = likely * size
            overlap = Overlap(tokens, tokens, tokens, expected * size, "approximate", age_s)
            return Belief(overlap, promised, size, likely)
        expected = self._expected.run(target, keys, held.gpu, now)
        if not expected and not held.disk and book.joined_late and not story.turned_over:
            return Belief(None, promised, size, 0)
        overlap = Overlap(held.gpu * size, held.cpu * size, held.disk * size, expected * size, "events", age_s)
        return Belief(overlap, promised, size, held.gpu)
