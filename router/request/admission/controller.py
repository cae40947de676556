"""Who may begin: "fit and park". A pure state machine for one model: times and facts come in, verdicts go out.

Beyond the edge where all contexts fit the KV memory of the fleet, every turn evicts what another one needs, and routing
cannot help: then fewer at a time are faster for everybody. So

    a new session                     waits unless  contexts of all that are live + its own  <=  KV tokens of the fleet
    a turn whose context is gone      waits likewise, ahead of new ones: its session is parked
    every other turn                  passes at once

where its own is the larger of its prompt and the mean context, for it will grow to that. Nobody waits longer than
`max_wait_s`; a new session that did, and comes again, stands ahead of those who come for the first time. With a shared
pool a lost context is loaded, not computed: nobody is parked, new sessions wait only while most of the fleet prefills
and most of that had been computed before, and those who waited begin a few at a time.

Whoever needs more than there is begins when nobody else is live. An unknown capacity bounds nothing: everybody passes.
The rule comes from the search that found `warm` (its figures: "Admission" in the README).
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import takewhile
from math import exp
from typing import Literal, NamedTuple

from router.config.sections import admission
from router.request.admission.live_sessions import ExpectedLoad, LiveSession, LiveSessions
from router.request.admission.queue import WaitQueue

QueueName = Literal["parked", "again", "new"]
QUEUES: tuple[QueueName, ...] = ("parked", "again", "new")  # in this order

GONE = 0.5  # a turn that finds less than this of what its session last asked has lost its context
BUSY = 0.9  # share of instances with prefill pending (`Fleet.busy`)
REDONE = 0.5  # share of the prompt tokens computed or loaded that had been computed before
REDONE_OVER_S = 20.0  # averaged over as long as `Fleet.busy`


class Arrival(NamedTuple):
    """A request at the door."""

    session: bytes | None  # whose it is; None: nobody's that could be known again
    prompt_tokens: int | None  # None: unknown
    local_tokens: int | None = None  # leading ones that some instance holds; None: unknown


class Admission:
    """One request, from its coming to its end. What is taken for it is given back once."""

    __slots__ = ("context_before", "prompt_tokens", "queue", "session", "since_s", "state", "waited")

    def __init__(self, session: LiveSession, prompt_tokens: int, queue: QueueName, now: float) -> None:
        self.session = session
        self.prompt_tokens = prompt_tokens  # 0: unknown
        self.queue: QueueName = queue  # where it stands, if it must wait
        self.since_s = now
        self.state: Literal["waiting", "inside", "over"] = "waiting"
        self.waited = False
        self.context_before = session.context_tokens


class Admitted(NamedTuple):
    turn: Admission


class Queued(NamedTuple):
    """It waits, or has waited as long as it may."""

    turn: Admission
    position: int  # in front of the door; the first is 1
    expected_s: float | None  # what it still has before it; None: unknown


class Released(NamedTuple):
    """Whose waiting is over."""

    passed: tuple[Admission, ...]
    refused: tuple[Queued, ...]


NOBODY = Released((), ())


class AdmissionState(NamedTuple):
    """How things stand, for people and metrics."""

    known: int  # sessions, however long they have been silent
    live: ExpectedLoad
    capacity_tokens: int | None  # None: unknown, so nobody waits
    waiting: tuple[Queued, ...]  # in order


class AdmissionController:
    def __init__(self, told: admission.AdmissionConfig, *, pooled: bool = False) -> None:
        self._max_wait_s, self._idle_s = told.max_wait_s, told.idle_s
        self._pooled = pooled
        self._live = LiveSessions(told.idle_s)
        self._queues: dict[QueueName, WaitQueue[Admission]] = {queue: WaitQueue() for queue in QUEUES}
        self._refused: OrderedDict[bytes, float] = OrderedDict()  # new sessions, and when
        self._capacity_tokens: int | None = None
        self._busy: float | None = None
        self._targets = 1
        self._starting = 0  # turns that waited as new ones, and are not over
        self._redone = self._worked = self._counted_at = 0.0  # prompt tokens, lately

    # requests

    def looks(self, session: bytes | None, prompt_tokens: int | None) -> bool:
        """Does it matter what instances hold of this prompt? To find that out costs more than all that is done here."""
        known = self._live.known(session)
        if self._pooled or known is None or known.prompt_tokens is None or known.running:
            return False
        return bool(self._queues["parked"]) or not self._fits(prompt_tokens or 0, self._live.expected())

    def arrives(self, caller: Arrival, now: float) -> Admitted | Queued:
        """To be followed by `answered` or `left`, whatever it says."""
        self._live.age(now)
        session = self._live.session(caller.session)
        self._live.comes(session)
        turn = Admission(session, caller.prompt_tokens or 0, self._queue(session, now), now)
        if not self._must_wait(turn, caller.local_tokens):
            self._begin(turn)
            return Admitted(turn)
        if turn.queue == "parked":
            session.context_tokens = turn.context_before = 0
        lane = self._queues[turn.queue]
        turn.waited = True
        session.waiting += 1
        lane.join(turn)
        return self._hold(turn, len(lane), now)

    def answered(
        self, turn: Admission, prompt_tokens: int, context_tokens: int, now: float, local_tokens: int | None = None
    ) -> None:
        """It was computed: `context_tokens`, its answer included, are in some cache. `local_tokens` of its prompt were
        in the instance's own before, neither computed nor loaded; None: unknown.
        """
        if self._is_over(turn):
            return
        if local_tokens is not None:
            self._count(turn.session.prompt_tokens or 0, prompt_tokens, local_tokens, now)
        self._live.answered(turn.session, prompt_tokens, context_tokens, now)

    def left(self, turn: Admission, now: float) -> None:
        """It is over without an answer, or gives up waiting."""
        waited = turn.state == "waiting"
        if self._is_over(turn):
            return
        if waited:
            self._queues[turn.queue].leave(turn)
            turn.session.waiting -= 1
            self._live.rests(turn.session, now)
        else:
            self._live.failed(turn.session, turn.context_before, now)

    # the fleet, and time

    def behind(self, capacity_tokens: int | None, busy: float | None = None, targets: int = 1) -> None:
        """What is behind the door now. `capacity_tokens`: KV tokens of all instances that serve the model, None:
        unknown. `busy`: share of them with prefill pending. `targets`: how many they are.
        """
        self._capacity_tokens, self._busy, self._targets = capacity_tokens, busy, targets

    def room(self, now: float) -> Released:
        """Whose waiting is over now. To be called when something has changed, and at `next_s`. Those who pass are
        inside; those who are refused need no more calls.
        """
        self._live.age(now)
        if not any(self._queues.values()):
            return NOBODY
        passed = tuple(self._let_in(now))
        refused = tuple(self._give_up(now))
        return Released(passed, refused) if passed or refused else NOBODY

    @property
    def next_s(self) -> float | None:
        """When to look again if nothing happens before; None: nobody waits."""
        firsts = [lane.first.since_s for lane in self._queues.values() if lane.first is not None]
        return min(min(firsts) + self._max_wait_s, self._live.next_s) if firsts else None

    def state(self, now: float) -> AdmissionState:
        self._live.age(now)
        waiting = (self._hold(turn, place, now) for lane in self._queues.values() for place, turn in enumerate(lane, 1))
        return AdmissionState(len(self._live), self._live.expected(), self._capacity_tokens, tuple(waiting))

    # who must wait

    def _queue(self, session: LiveSession, now: float) -> QueueName:
        while self._refused and next(iter(self._refused.values())) < now - self._idle_s:
            self._refused.popitem(last=False)
        if session.prompt_tokens is not None:
            return "parked"
        return "again" if session.name is not None and self._refused.pop(session.name, None) is not None else "new"

    def _must_wait(self, turn: Admission, local_tokens: int | None) -> bool:
        if turn.session.running:
            return False
        if turn.queue == "parked" and (self._pooled or not _is_gone(turn, local_tokens)):
            return False
        return any(self._queues[queue] for queue in _up_to(turn.queue)) or not self._may_begin(turn)

    def _may_begin(self, turn: Admission) -> bool:
        if turn.session.running or self._fits(turn.prompt_tokens, self._live.expected()):
            fits = True
        else:
            fits = self._pooled and not self._is_pressed()
        # Else all who waited would begin in the moment in which the fleet is a little less busy.
        return fits and not (self._pooled and turn.waited and self._starting >= self._targets)

    def _fits(self, prompt_tokens: int, live: ExpectedLoad) -> bool:
        if self._capacity_tokens is None or live.context_tokens < 1:
            return True
        return live.context_tokens + max(prompt_tokens, live.mean_tokens) <= self._capacity_tokens

    def _is_pressed(self) -> bool:
        return (self._busy or 0.0) > BUSY and self._redone > REDONE * self._worked

    def _count(self, before: int, prompt_tokens: int, local_tokens: int, now: float) -> None:
        """What a prompt cost beside what its session had asked before. A load is work, too: it holds the prompt up."""
        fades = exp((self._counted_at - now) / REDONE_OVER_S)
        self._counted_at = now
        self._redone = self._redone * fades + max(0, min(before, prompt_tokens) - local_tokens)
        self._worked = self._worked * fades + max(0, prompt_tokens - local_tokens)

    # coming and going

    def _begin(self, turn: Admission) -> None:
        turn.state = "inside"
        self._live.begins(turn.session, turn.prompt_tokens)

    def _let_in(self, now: float) -> list[Admission]:
        """Whoever stands first and may begin, as long as there is one."""
        passed: list[Admission] = []
        for lane in self._queues.values():
            while (turn := lane.first) is not None:
                if not self._may_begin(turn):
                    return passed
                lane.let_in(turn, now)
                turn.session.waiting -= 1
                self._starting += turn.queue != "parked"
                self._begin(turn)
                passed.append(turn)
        return passed

    def _give_up(self, now: float) -> list[Queued]:
        """Whoever has waited too long."""
        refused: list[Queued] = []
        for lane in self._queues.values():
            late = list(takewhile(lambda turn: turn.since_s + self._max_wait_s <= now, lane))
            refused += [self._hold(turn, place, now) for place, turn in enumerate(late, 1)]
            for turn in late:
                lane.leave(turn)
                turn.state = "over"
                turn.session.waiting -= 1
                self._live.rests(turn.session, now)
                if turn.queue != "parked" and turn.session.name is not None:
                    self._refused[turn.session.name] = now
        return refused

    def _is_over(self, turn: Admission) -> bool:
        """False, and over from now on: it was not."""
        before, turn.state = turn.state, "over"
        if before == "inside" and turn.waited and turn.queue != "parked":
            self._starting -= 1
        return before == "over"

    def _hold(self, turn: Admission, place: int, now: float) -> Queued:
        """Of one at that place of its line."""
        ahead = sum(len(self._queues[queue]) for queue in _up_to(turn.queue)[:-1])
        return Queued(turn, ahead + place, self._queues[turn.queue].expected_s(place, now))


def _up_to(queue: QueueName) -> tuple[QueueName, ...]:
    """That line and those that go before it."""
    return QUEUES[: QUEUES.index(queue) + 1]


def _is_gone(turn: Admission, local_tokens: int | None) -> bool:
    """Of a later turn. One that was cut down, or has begun anew, needs no more than it has."""
    last = turn.session.prompt_tokens or 0
    return local_tokens is not None and local_tokens < GONE * (min(last, turn.prompt_tokens) or last)
