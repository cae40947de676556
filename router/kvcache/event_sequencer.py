"""Orders one rank's event batches and decides when the index can be trusted and is complete.

Engines number their batches from 0 and keep the last few thousand for replay. They send no epoch, so a restart
shows only in sequence numbers that fall while timestamps grow, and connections can lose batches silently. The
sequencer is a pure state machine: batches go in, steps come out (apply these events, request a replay from here,
forget all).

              connected            replay ended, no gap
       new ------------> replaying --------------------> live     only `live` is trusted
        |                 ^     |                         |
        |   gap, restart  |     | no answer, twice        | reconnected without a replay endpoint
        +-----------------+     +-------> lost <----------+       `lost`: the next batch decides

*One cursor* (`last_seq`): during a replay, live batches wait in a bounded queue and are taken through the same code
path afterwards. So nothing is applied twice, and no second watermark is needed.

*A replay begins at the last applied batch*, not after it, and its first answer identifies the process: the same
number with the same timestamp is the same process. Another timestamp, or an empty replay, is a new process, even if
its numbers have already passed the cursor, so that the restart looks like a gap (`protocol.md` 2.10).

*Bounded recovery*: a number can be missing for ever (engines consume it before an encoding that can fail). After
two replays that do not move the cursor, the sequencer forgets, continues with the next batch and sets
`joined_late`.

*A silent replay endpoint* receives no requests for a while, or until a reconnect: the batches that a busy engine
publishes during a replay do not fit the queue, so each replay without an answer causes the gap that would request
the next replay.

*A silent stream* is live, and delivers nothing although the engine computes blocks: after `UNANNOUNCED` such answers,
each to a request that was sent after the one before was answered, it is not trusted until something arrives again.
A stream that never delivered anything is `mute` by the same rule, for the operator: it may have another topic.

*Without a replay endpoint* a reconnect may lead to another process. A connection receives only batches published
after it was made, so a first number at or below the cursor is a new process, and so is a clock that went back. A
new process whose numbers happen to continue is detected by its size (`TargetCacheState.cache_blocks`).
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Literal, NamedTuple

from router.kvcache.engine_hashes import EngineChain
from router.kvcache.events import BlocksCleared, Event, EventBatch

MAX_REPLAYS = 2  # replays without progress before a gap is given up
FIRST_PAUSE_S, LONGEST_PAUSE_S = 60.0, 900.0  # pauses in requests to a silent replay endpoint: doubled each time
UNANNOUNCED = 3
SILENT_S = 1.0  # that a stream is at least without a batch before it counts as silent: it may be connecting
MAX_HELD_BYTES = 256 * 1024  # of live batches that wait for a replay; batches beyond are dropped and become a gap


class ApplyBatch(NamedTuple):
    """Apply these events next."""

    events: list[Event]


class RequestReplay(NamedTuple):
    """Request a replay of all batches from this sequence number on."""

    start_seq: int


class ForgetTarget(NamedTuple):
    """Forget everything applied so far: it describes another process, or, after a `gap`, is no longer valid."""

    gap: bool = False


class StreamCursor(NamedTuple):
    """Position in a stream, enough to continue it in another process."""

    last_seq: int
    last_wall_s: float  # of that batch, by the engine's clock
    joined_late: bool


class RestoredStream(NamedTuple):
    """State of a target's stream in a snapshot."""

    cursor: StreamCursor
    stored_blocks: int


Step = ApplyBatch | RequestReplay | ForgetTarget
State = Literal["new", "replaying", "live", "lost"]


class EventSequencer:
    """The state of one rank's stream. `now` is monotonic seconds, `wall` seconds since the epoch.

    At most one replay runs at a time: after a `RequestReplay` the caller calls `on_replayed` for each batch and
    then `on_replay_end` once. `replayable`: the engine has a replay endpoint, which may be silent.
    """

    def __init__(self, replayable: bool) -> None:
        self.replayable = replayable
        self.state: State = "new"
        self.joined_late = False  # earlier batches are lost: a block missing from the index may still be cached
        self.last_seq = -1  # of the last batch applied
        self.last_heard_s: float | None = None  # monotonic, of the last message or connect
        self.lag_s: float | None = None  # of the last live batch: our clock minus the engine's
        self.events = self.gaps = self.replays = self.duplicates = self.restarts = 0
        self._last_wall_s = 0.0
        self._idle_replays = 0  # replays since the cursor moved
        self._unanswered = 0  # replays since the last one that returned anything
        self._pause_s = FIRST_PAUSE_S
        self._paused_until_s: float | None = None  # no replay is requested before
        self._held: deque[EventBatch] = deque()
        self._held_bytes = 0
        self._unconfirmed = False  # after a reconnect, until a replay shows that the process is the same
        self._reconnected = False  # without a replay endpoint, until the next batch
        self._first_answer = False  # the running replay has not answered yet
        self._discarding = False  # ignore the running replay and request another when it ends
        self.silent = False
        self.mute = False  # blocks were computed, and nothing was ever announced
        self._unannounced = 0  # answers in a row whose blocks were not announced
        self._unannounced_at = 0.0  # when the last of them ended

    @classmethod
    def resume(cls, replayable: bool, cursor: StreamCursor) -> EventSequencer:
        """Return a sequencer that continues at the cursor of another router process, as after a reconnect: the
        cursor is confirmed by a replay from it or, without a replay endpoint, by the next batch.
        """
        sequencer = cls(replayable)
        sequencer.last_seq, sequencer._last_wall_s, sequencer.joined_late = cursor
        sequencer._unconfirmed = replayable
        if not replayable:
            sequencer.state = "lost"
        return sequencer

    @property
    def cursor(self) -> StreamCursor | None:
        """The position reached; None before the first applied batch."""
        return None if self.last_seq < 0 else StreamCursor(self.last_seq, self._last_wall_s, self.joined_late)

    @property
    def trusted(self) -> bool:
        return self.state == "live" and not self.silent

    @property
    def replay_silent(self) -> bool:
        """Whether the replay endpoint left the last requests without any answer."""
        return self._unanswered >= MAX_REPLAYS

    def on_connected(self, now: float) -> list[Step]:
        """Handle a connect or reconnect: batches may be lost and the process may be another."""
        self.last_heard_s = now
        self._held.clear()
        self._held_bytes = 0
        self._idle_replays = 0
        self._paused_until_s = None  # another process may answer
        self.silent, self._unannounced = False, 0
        if not self.replayable:
            self._reconnected = self.last_seq >= 0
            if self.state == "live":
                self.state = "lost"
            return []
        self._unconfirmed = self.last_seq >= 0
        if self.state == "replaying":  # the replay may come from the previous process
            self._discarding = True
            return []
        return [self._request_replay()]

    def on_live(self, batch: EventBatch, now: float, wall: float) -> list[Step]:
        """Handle a batch from the live stream."""
        self.last_heard_s = now
        self.silent = self.mute = False
        self._unannounced = 0
        self.lag_s = wall - batch.wall_s
        if self.state != "replaying":
            self.state = "live"
            return self._accept(batch, now)
        if self._held_bytes + batch.size_bytes <= MAX_HELD_BYTES:
            self._held_bytes += batch.size_bytes
            self._held.append(batch)
        return []

    def on_answer(self, sent_at: float, now: float) -> None:
        """Handle an answer for which the engine computed new blocks; its request was sent at `sent_at`."""
        if self.last_heard_s is None or self.last_heard_s >= sent_at:
            self._unannounced = 0
        elif sent_at >= self._unannounced_at:  # else the answers end together, and their events may be on the way
            self._unannounced, self._unannounced_at = self._unannounced + 1, now
            if self._unannounced >= UNANNOUNCED and now - self.last_heard_s >= SILENT_S:
                self.silent = bool(self.events)
                self.mute = not self.events

    def on_replayed(self, batch: EventBatch, now: float) -> list[Step]:
        """Handle a batch from the running replay."""
        self.last_heard_s = now
        if self.state != "replaying" or self._discarding or batch.seq < self.last_seq:
            return []
        if self._first_answer:
            self._first_answer = False
            return self._first_replayed(batch)
        if batch.seq == self.last_seq + 1:
            return self._apply(batch)
        if batch.seq == self.last_seq:
            return []
        # The engine dropped batches that were not read fast enough: the rest of this replay is useless.
        return [self._request_replay()] if self._may_replay(now) else self._restart_from(batch)

    def on_replay_end(self, complete: bool, now: float) -> list[Step]:
        """Handle the end of the replay; not `complete` (without end marker), it may still connect to live
        batches.
        """
        if self.state != "replaying":
            return []
        steps: list[Step] = []
        if complete or not self._first_answer:
            self._unanswered, self._pause_s, self._paused_until_s = 0, FIRST_PAUSE_S, None
        elif not self._discarding:
            self._count_unanswered(now)
        if complete:
            self.last_heard_s = now
            # An empty replay: the engine does not know the last applied batch.
            if self._first_answer and self.last_seq >= 0 and not self._discarding:
                steps.append(self._on_new_process())
                self._discarding = True
        if self._discarding or (not complete and not self._held and self._may_replay(now)):
            return [*steps, self._request_replay()]
        self.state = "live" if complete or self._held else "lost"
        while self._held and self.state == "live":
            batch = self._held.popleft()
            self._held_bytes -= batch.size_bytes
            steps += self._accept(batch, now)
        return steps

    def _accept(self, batch: EventBatch, now: float) -> list[Step]:
        if self._reconnected:
            self._reconnected = False
            if batch.seq <= self.last_seq or batch.wall_s < self._last_wall_s:
                return [self._on_new_process(), *self._accept(batch, now)]
        if batch.seq > self.last_seq + 1 or self._unconfirmed:
            return self._gap(batch, now)
        if batch.seq == self.last_seq + 1:
            return self._apply(batch)
        if batch.wall_s <= self._last_wall_s:
            self.duplicates += 1
            return []
        return [self._on_new_process(), *self._accept(batch, now)]  # the sequence number fell while the timestamp grew

    def _first_replayed(self, batch: EventBatch) -> list[Step]:
        """Handle the oldest replayed batch: it identifies the process and shows how far its history reaches."""
        if batch.seq == max(self.last_seq, 0):
            if self.last_seq < 0:
                return self._apply(batch)
            if batch.wall_s == self._last_wall_s:
                self._unconfirmed = False
                return []
            self._discarding = True  # it starts in the middle of another process's history
            return [self._on_new_process()]
        return self._restart_from(batch)

    def _gap(self, batch: EventBatch, now: float) -> list[Step]:
        if self._idle_replays == 0 and self.last_seq >= 0:
            self.gaps += 1
        if not self._may_replay(now):
            return self._restart_from(batch)
        self._held.appendleft(batch)
        self._held_bytes += batch.size_bytes
        return [self._request_replay()]

    def _may_replay(self, now: float) -> bool:
        paused = self._paused_until_s is not None and now < self._paused_until_s
        return self.replayable and not paused and self._idle_replays < MAX_REPLAYS

    def _count_unanswered(self, now: float) -> None:
        self._unanswered += 1
        if self._unanswered >= MAX_REPLAYS:
            self._paused_until_s = now + self._pause_s
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def _request_replay(self) -> RequestReplay:
        self.state = "replaying"
        self.replays += 1
        self._idle_replays += 1
        self._first_answer, self._discarding = True, False
        return RequestReplay(max(self.last_seq, 0))

    def _on_new_process(self) -> ForgetTarget:
        self.restarts += 1
        self.last_seq = -1
        self._last_wall_s = 0.0
        self._idle_replays = 0
        self._unconfirmed = False
        self.joined_late = False
        return ForgetTarget()

    def _restart_from(self, batch: EventBatch) -> list[Step]:
        """Continue at `batch`; the batches between the cursor and it are lost."""
        self.joined_late = True
        self._unconfirmed = False
        return [ForgetTarget(gap=True), *self._apply(batch)]

    def _apply(self, batch: EventBatch) -> list[Step]:
        if not self.events:
            self.mute, self._unannounced = False, 0
        self.last_seq = batch.seq
        self._last_wall_s = batch.wall_s
        self._idle_replays = 0
        self.events += len(batch.events)
        if any(isinstance(event, BlocksCleared) for event in batch.events):
            self.joined_late = False  # missed blocks are gone as well
        return [ApplyBatch(batch.events)]


class TargetCacheState:
    """Counters and stream state from one join of the target to the next.

    A stream joined late does not cover blocks that were cached before. The index becomes complete for the target
    when as many blocks have been stored since as the target can hold, and none of them waits for a parent: the
    earlier blocks have been evicted by then, except those in use (`missed_prefixes.py`).
    """

    __slots__ = (
        *("backlog", "batches", "block_sizes", "block_tokens", "bytes", "cache_blocks", "capacity_blocks", "chain"),
        *("keyless_blocks", "malformed", "model", "overfull", "recalled_blocks", "sequencer", "skipped"),
        *("stored_blocks", "unknown_hashing", "unmeasured_blocks"),
    )

    def __init__(self, model: str) -> None:
        self.model = model
        self.sequencer: EventSequencer | None = None
        self.backlog: deque[Event | ForgetTarget] = deque()  # in order, not applied yet
        self.bytes = 0  # of its entries in the index, as last measured
        self.unmeasured_blocks = 0  # applied since `bytes` was measured
        self.block_sizes: set[int] = set()  # block sizes that its events had
        self.block_tokens: int | None = None
        self.capacity_blocks: int | None = None  # computed from its tokens: hybrid models have more blocks
        self.cache_blocks: int | None = None  # on its GPU, of which every copy of a block takes one
        self.overfull = 0  # times that it held more than `cache_blocks`, which no process can
        self.chain: EngineChain | None = None  # how its engine hashes; None: not proved
        self.unknown_hashing = False  # its engine's way to hash cannot be computed
        self.keyless_blocks = 0  # cached blocks of a stream joined late whose chains are not known
        self.recalled_blocks = 0  # learned by evidence other than their events
        self.stored_blocks = 0  # stored on its GPU since its index began
        self.batches = 0
        self.malformed = 0
        self.skipped: Counter[str] = Counter()

    @property
    def turned_over(self) -> bool:
        """Whether at least as many blocks were stored since the start as the cache holds."""
        return self.capacity_blocks is not None and self.stored_blocks >= self.capacity_blocks

    @property
    def certain(self) -> bool:
        """Whether the index is authoritative: every block in it is cached, and every block not in it is not."""
        sequencer = self.sequencer
        if sequencer is None or not sequencer.trusted:
            return False
        # LRU keeps a prefix that is in use. Blocks that wait for a parent show that one exists.
        return not sequencer.joined_late or (self.turned_over and not self.keyless_blocks)

    def begin_empty(self) -> None:
        """Note that the cache is empty now: missed blocks are gone as well."""
        if self.sequencer is not None:
            self.sequencer.joined_late = False

    def begin_late(self) -> None:
        """Note that the index is not what the engine holds, of which only the events from now on are known."""
        self.stored_blocks = 0
        if self.sequencer is not None:
            self.sequencer.joined_late = True

    def count(self, batch: EventBatch) -> None:
        """Count a live or replayed batch."""
        self.batches += 1
        self.skipped.update(batch.skipped)
