"""Puts one rank's event batches in order, and says when what we know can be trusted.

Engines number their batches from 0 and keep the last few thousand for replay; they send no epoch, so a restart is
only seen in numbers that fall back while clocks go on. Connections lose batches without a word. The book is a pure
state machine over that: batches go in, steps come out (apply these events, ask for a replay from here, forget all).

              connected            replay ended, no gap
       new ------------> replaying --------------------> live     `live` is the only state to trust
        |                 ^     |                         |
        |   gap, restart  |     | no answer, twice        | reconnected, and no replay to check with
        +-----------------+     +-------> lost <----------+       `lost`: the next batch decides

*One cursor* (`last_seq`): while a replay runs, live batches wait in a bounded queue and are taken, through the same
door, after it. So nothing is applied twice, and no second watermark is needed.

*A replay begins at the last batch we have*, not after it, and its first answer proves who answers: the same number
with the same timestamp is the same process. Another timestamp, or nothing at all, is a new one, even if its numbers
have already passed ours, where a restart looks like a gap (`protocol.md` 2.10).

*Bounded trouble*: a number can be missing for ever (it is used up before an encoding that can fail). After two replays
that do not move the cursor the book forgets, goes on from what comes next, and calls itself joined late.
"""

from __future__ import annotations

from collections import deque
from typing import Literal, NamedTuple

from router.kvcache.events import BlocksCleared, Event, EventBatch

MOST_REPLAYS = 2  # that bring nothing new, before a gap or a doubt is given up
HELD_BATCHES = 10_000  # live ones that wait for a replay; what comes beyond is a gap, later


class ApplyBatch(NamedTuple):
    """These events are next."""

    events: list[Event]


class RequestReplay(NamedTuple):
    """Please replay all batches from this number on."""

    start_seq: int


class ForgetTarget(NamedTuple):
    """What was applied so far says nothing about now."""


class StreamCursor(NamedTuple):
    """How far a stream was applied: enough to go on in another process."""

    last_seq: int
    last_wall_s: float  # of that batch, by the engine's clock
    joined_late: bool


Step = ApplyBatch | RequestReplay | ForgetTarget
State = Literal["new", "replaying", "live", "lost"]


class EventSequencer:
    """The book of one rank. `now` is monotonic seconds, `wall` seconds since the epoch.

    At most one replay runs at a time: after an `RequestReplay` the caller brings `replayed` for each batch and then
    `replay_ended` once. `replayable`: the engine has a replay endpoint.
    """

    def __init__(self, replayable: bool) -> None:
        self.replayable = replayable
        self.state: State = "new"
        self.joined_late = False  # batches before the first applied are lost: absence from the index proves nothing
        self.last_seq = -1  # of the last batch applied
        self.last_heard_s: float | None = None  # monotonic, of any sign of life
        self.lag_s: float | None = None  # of the last live batch, from the engine's clock to ours
        self.events = self.gaps = self.replays = self.duplicates = self.restarts = 0
        self._last_wall_s = 0.0
        self._asked = 0  # replays since the cursor moved
        self._held: deque[EventBatch] = deque()
        self._doubted = False  # reconnected: what we have may be another process's, until a replay shows it is not
        self._opening = False  # the running replay has shown nothing yet
        self._useless = False  # the running replay cannot help: ask again when it ends

    @classmethod
    def resume(cls, replayable: bool, cursor: StreamCursor) -> EventSequencer:
        """Goes on where another process's book stood, as after a reconnect: what was applied may be another engine
        process's, until a replay from the cursor, or without replays the next batch, shows that it is not."""
        book = cls(replayable)
        book.last_seq, book._last_wall_s, book.joined_late = cursor
        book._doubted = replayable
        if not replayable:
            book.state = "lost"
        return book

    @property
    def cursor(self) -> StreamCursor | None:
        """None: nothing was applied yet."""
        return None if self.last_seq < 0 else StreamCursor(self.last_seq, self._last_wall_s, self.joined_late)

    @property
    def trusted(self) -> bool:
        return self.state == "live"

    def on_connected(self, now: float) -> list[Step]:
        """The stream was connected, for the first time or again: batches may be lost, the process may be another."""
        self.last_heard_s = now
        self._held.clear()
        self._asked = 0
        if not self.replayable:
            if self.state == "live":
                self.state = "lost"
            return []
        self._doubted = self.last_seq >= 0
        if self.state == "replaying":  # perhaps from the process that is gone
            self._useless = True
            return []
        return [self._ask()]

    def on_live(self, batch: EventBatch, now: float, wall: float) -> list[Step]:
        """A batch came over the stream."""
        self.last_heard_s = now
        self.lag_s = wall - batch.wall_s
        if self.state != "replaying":
            self.state = "live"
            return self._take(batch)
        if len(self._held) < HELD_BATCHES:
            self._held.append(batch)
        return []

    def on_replayed(self, batch: EventBatch, now: float) -> list[Step]:
        """A batch came from the running replay."""
        self.last_heard_s = now
        if self.state != "replaying" or self._useless or batch.seq < self.last_seq:
            return []
        if self._opening:
            self._opening = False
            return self._first_replayed(batch)
        if batch.seq == self.last_seq + 1:
            return self._apply(batch)
        if batch.seq > self.last_seq and not self._worth_asking():
            return self._go_on_from(batch)
        self._useless = batch.seq > self.last_seq
        return []

    def on_replay_end(self, complete: bool, now: float) -> list[Step]:
        """The replay is over; `complete`: with its end marker. Without, what came may still reach the live batches."""
        if self.state != "replaying":
            return []
        steps: list[Step] = []
        if complete:
            self.last_heard_s = now
            if self._opening and self.last_seq >= 0 and not self._useless:  # it does not have what we have
                steps.append(self._new_process())
                self._useless = True
        if self._useless or (not complete and not self._held and self._worth_asking()):
            return [*steps, self._ask()]
        self.state = "live" if complete or self._held else "lost"
        while self._held and self.state == "live":
            steps += self._take(self._held.popleft())
        return steps

    def _take(self, batch: EventBatch) -> list[Step]:
        if batch.seq > self.last_seq + 1 or self._doubted:
            return self._gap(batch)
        if batch.seq == self.last_seq + 1:
            return self._apply(batch)
        if batch.wall_s <= self._last_wall_s:
            self.duplicates += 1
            return []
        return [self._new_process(), *self._take(batch)]  # the number fell while the clock went on

    def _first_replayed(self, batch: EventBatch) -> list[Step]:
        """The oldest batch the engine has of those asked for: shows who answers, and how far back it reaches."""
        if batch.seq == max(self.last_seq, 0):
            if self.last_seq < 0:
                return self._apply(batch)
            if batch.wall_s == self._last_wall_s:
                self._doubted = False
                return []
            self._useless = True  # it starts in the middle of another process's story
            return [self._new_process()]
        return self._go_on_from(batch)

    def _gap(self, batch: EventBatch) -> list[Step]:
        if self._asked == 0 and self.last_seq >= 0:
            self.gaps += 1
        if not self._worth_asking():
            return self._go_on_from(batch)
        self._held.appendleft(batch)
        return [self._ask()]

    def _worth_asking(self) -> bool:
        return self.replayable and self._asked < MOST_REPLAYS

    def _ask(self) -> RequestReplay:
        self.state = "replaying"
        self.replays += 1
        self._asked += 1
        self._opening, self._useless = True, False
        return RequestReplay(max(self.last_seq, 0))

    def _new_process(self) -> ForgetTarget:
        self.restarts += 1
        self.last_seq = -1
        self._last_wall_s = 0.0
        self._asked = 0
        self._doubted = False
        self.joined_late = False
        return ForgetTarget()

    def _go_on_from(self, batch: EventBatch) -> list[Step]:
        """What lies between the cursor and this batch is lost."""
        self.joined_late = True
        self._doubted = False
        return [ForgetTarget(), *self._apply(batch)]

    def _apply(self, batch: EventBatch) -> list[Step]:
        self.last_seq = batch.seq
        self._last_wall_s = batch.wall_s
        self._asked = 0
        self.events += len(batch.events)
        if any(isinstance(event, BlocksCleared) for event in batch.events):
            self.joined_late = False  # whatever we missed is gone as well
        return [ApplyBatch(batch.events)]
