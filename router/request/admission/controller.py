"""Admission control for one model ("fit and park"): a pure state machine of arrivals, ends, capacity and time.

Once the contexts of the live sessions exceed the KV cache of the fleet, every request evicts what another one needs,
and routing cannot help: fewer at a time are then faster for all. So

    a new session                        waits unless  contexts of all live sessions + its own <= KV tokens of the fleet
    a request whose context was evicted  waits likewise, ahead of new ones: its session is parked
    every other request                  is admitted at once

where its own is the larger of its prompt and the mean context, since it will grow to that. No request waits longer than
`max_wait_s`; a new session that did, and comes again, is queued ahead of those that come for the first time. With a
shared pool a lost context is loaded, not computed: nothing is parked, new sessions wait only while most of the fleet
prefills and most of that had been computed before, and those that waited start a few at a time.

A request that needs more than the whole capacity starts when no other session is live. While the capacity is unknown
everything is admitted. The rule comes from the search that found `warm` (figures: "Admission" in the documentation).
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice, takewhile
from math import exp
from sys import maxsize
from typing import Literal, NamedTuple

from router.config.sections.listeners import AdmissionConfig
from router.request.admission.live_sessions import ExpectedLoad, LiveSession, LiveSessions
from router.request.admission.queue import WaitQueue

QueueName = Literal["parked", "again", "new"]
QUEUES: tuple[QueueName, ...] = ("parked", "again", "new")  # in this order

EVICTED_BELOW = 0.5  # a request that finds less than this share of its session's last prompt has lost its context
BUSY_ABOVE = 0.9  # share of instances with prefill pending (`Fleet.busy`)
RECOMPUTED_ABOVE = 0.5  # share of the prompt tokens computed or loaded that had been computed before
RECOMPUTED_OVER_S = 20.0  # averaged over as long as `Fleet.busy`


class Arrival(NamedTuple):
    """A request that asks for admission."""

    session: bytes | None  # None: it cannot be recognised again
    prompt_tokens: int | None  # None: unknown
    local_tokens: int | None = None  # leading ones that some instance holds; None: unknown


class Admission:
    """One request from its arrival to its end; what it takes is given back once."""

    __slots__ = ("context_before", "prompt_tokens", "queue", "session", "since_s", "state", "waited")

    def __init__(self, session: LiveSession, prompt_tokens: int, queue: QueueName, now: float) -> None:
        self.session = session
        self.prompt_tokens = prompt_tokens  # 0: unknown
        self.queue: QueueName = queue  # where it waits, if it must
        self.since_s = now
        self.state: Literal["waiting", "running", "ended"] = "waiting"
        self.waited = False
        self.context_before = session.context_tokens


class Admitted(NamedTuple):
    admission: Admission


class Queued(NamedTuple):
    """A request that waits, or that has waited as long as it may."""

    admission: Admission
    position: int  # from 1, over all queues
    expected_s: float | None  # the wait still ahead; None: unknown


class Released(NamedTuple):
    """The requests that no longer wait. `more`: others may be released at once, too, beyond the number asked for."""

    admitted: tuple[Admission, ...]
    refused: tuple[Queued, ...]
    more: bool = False


NOTHING_RELEASED = Released((), ())


class AdmissionState(NamedTuple):
    """The state of one model's admission, for people and metrics."""

    known: int  # sessions, however long they have been silent
    live: ExpectedLoad
    capacity_tokens: int | None  # None: unknown, so nothing waits
    queued: dict[QueueName, int]  # number of waiting requests
    waiting: tuple[Queued, ...]  # the first of them, in order


class AdmissionController:
    """Admission for one model. `pooled`: the fleet has a shared pool."""

    def __init__(self, config: AdmissionConfig, *, pooled: bool = False) -> None:
        self._max_wait_s, self._idle_s = config.max_wait_s, config.idle_s
        self._pooled = pooled
        self._live = LiveSessions(config.idle_s)
        self._queues: dict[QueueName, WaitQueue[Admission]] = {queue: WaitQueue() for queue in QUEUES}
        self._refused: OrderedDict[bytes, float] = OrderedDict()  # new sessions, and when
        self._capacity_tokens: int | None = None
        self._busy: float | None = None
        self._targets = 1
        self._starting = 0  # running requests that waited as new ones
        self._recomputed = self._computed = self._counted_at = 0.0  # prompt tokens, decaying

    # requests

    def needs_overlap(self, session: bytes | None, prompt_tokens: int | None) -> bool:
        """Return whether it matters what instances hold of this prompt; to find out costs more than all the rest."""
        live = self._live.find(session)
        if self._pooled or live is None or live.prompt_tokens is None or live.running:
            return False
        return bool(self._queues["parked"]) or not self._fits(prompt_tokens or 0, self._live.expected_load())

    def arrive(self, arrival: Arrival, now: float) -> Admitted | Queued:
        """Admit or queue a request. Call `on_answer` or `on_leave` afterwards, whatever the verdict."""
        self._live.advance(now)
        session = self._live.get_or_create(arrival.session)
        self._live.on_arrival(session)
        admission = Admission(session, arrival.prompt_tokens or 0, self._choose_queue(session, now), now)
        if not self._must_wait(admission, arrival.local_tokens):
            self._start(admission)
            return Admitted(admission)
        if admission.queue == "parked":
            session.context_tokens = admission.context_before = 0
        queue = self._queues[admission.queue]
        admission.waited = True
        session.waiting += 1
        queue.join(admission)
        return self._describe(admission, len(queue), now)

    def on_answer(
        self, admission: Admission, prompt_tokens: int, context_tokens: int, now: float, local_tokens: int | None = None
    ) -> None:
        """The request was computed: `context_tokens`, its answer included, are in some cache. `local_tokens` of its
        prompt were in the instance's own cache before, neither computed nor loaded; `None` when unknown.
        """
        if self._close(admission):
            return
        if local_tokens is not None:
            self._count(admission.session.prompt_tokens or 0, prompt_tokens, local_tokens, now)
        self._live.on_answer(admission.session, prompt_tokens, context_tokens, now)

    def on_leave(self, admission: Admission, now: float) -> None:
        """The request ended without an answer, or stopped waiting."""
        waited = admission.state == "waiting"
        if self._close(admission):
            return
        if waited:
            self._queues[admission.queue].leave(admission)
            admission.session.waiting -= 1
            self._live.on_idle(admission.session, now)
        else:
            self._live.on_failure(admission.session, admission.context_before, now)

    # the fleet, and time

    def set_capacity(self, capacity_tokens: int | None, busy: float | None = None, targets: int = 1) -> None:
        """Set what the fleet has: KV tokens of all instances that serve the model (`None`: unknown), the share of them
        with prefill pending, and their number.
        """
        self._capacity_tokens, self._busy, self._targets = capacity_tokens, busy, targets

    def release_waiting(self, now: float, at_most: int = maxsize) -> Released:
        """Return the requests whose wait ends now, `at_most` so many of either kind. Call it when something has
        changed, and at `next_s`. Those refused need no further calls.
        """
        self._live.advance(now)
        if not any(self._queues.values()):
            return NOTHING_RELEASED
        admitted = tuple(self._admit_first(now, at_most))
        refused = tuple(self._refuse_late(now, at_most))
        if not admitted and not refused:
            return NOTHING_RELEASED
        return Released(admitted, refused, more=at_most in (len(admitted), len(refused)))

    @property
    def next_s(self) -> float | None:
        """The time at which `release_waiting` is due if nothing happens before; `None` while nothing waits."""
        firsts = [queue.first.since_s for queue in self._queues.values() if queue.first is not None]
        return min(min(firsts) + self._max_wait_s, self._live.next_s) if firsts else None

    def state(self, now: float, listed: int = maxsize) -> AdmissionState:
        """Return the state as of now, with at most `listed` of the waiting requests."""
        self._live.advance(now)
        waiting = (self._describe(a, place, now) for queue in self._queues.values() for place, a in enumerate(queue, 1))
        queued = {name: len(queue) for name, queue in self._queues.items()}
        live = self._live.expected_load()
        return AdmissionState(len(self._live), live, self._capacity_tokens, queued, tuple(islice(waiting, listed)))

    # which requests must wait

    def _choose_queue(self, session: LiveSession, now: float) -> QueueName:
        while self._refused and next(iter(self._refused.values())) < now - self._idle_s:
            self._refused.popitem(last=False)
        if session.prompt_tokens is not None:
            return "parked"
        return "again" if session.name is not None and self._refused.pop(session.name, None) is not None else "new"

    def _must_wait(self, admission: Admission, local_tokens: int | None) -> bool:
        if admission.session.running:
            return False
        if admission.queue == "parked" and (self._pooled or not _is_evicted(admission, local_tokens)):
            return False
        return any(self._queues[queue] for queue in _up_to(admission.queue)) or not self._may_start(admission)

    def _may_start(self, admission: Admission) -> bool:
        if admission.session.running or self._fits(admission.prompt_tokens, self._live.expected_load()):
            fits = True
        else:
            fits = self._pooled and not self._is_overloaded()
        # Otherwise all that waited would start in the moment in which the fleet is a little less busy.
        return fits and not (self._pooled and admission.waited and self._starting >= self._targets)

    def _fits(self, prompt_tokens: int, live: ExpectedLoad) -> bool:
        if self._capacity_tokens is None or live.context_tokens < 1:
            return True
        return live.context_tokens + max(prompt_tokens, live.mean_tokens) <= self._capacity_tokens

    def _is_overloaded(self) -> bool:
        return (self._busy or 0.0) > BUSY_ABOVE and self._recomputed > RECOMPUTED_ABOVE * self._computed

    def _count(self, before: int, prompt_tokens: int, local_tokens: int, now: float) -> None:
        """Count what a prompt cost against the session's last prompt. A load counts too: it delays the prompt."""
        decay = exp((self._counted_at - now) / RECOMPUTED_OVER_S)
        self._counted_at = now
        self._recomputed = self._recomputed * decay + max(0, min(before, prompt_tokens) - local_tokens)
        self._computed = self._computed * decay + max(0, prompt_tokens - local_tokens)

    # transitions

    def _start(self, admission: Admission) -> None:
        admission.state = "running"
        self._live.on_start(admission.session, admission.prompt_tokens)

    def _admit_first(self, now: float, at_most: int) -> list[Admission]:
        """Admit from the front of the queues while the first may start."""
        admitted: list[Admission] = []
        for queue in self._queues.values():
            while len(admitted) < at_most and (admission := queue.first) is not None:
                if not self._may_start(admission):
                    return admitted
                queue.admit(admission, now)
                admission.session.waiting -= 1
                self._starting += admission.queue != "parked"
                self._start(admission)
                admitted.append(admission)
        return admitted

    def _refuse_late(self, now: float, at_most: int) -> list[Queued]:
        """Refuse what has waited for `max_wait_s`."""
        refused: list[Queued] = []
        for queue in self._queues.values():
            is_late = takewhile(lambda admission: admission.since_s + self._max_wait_s <= now, queue)
            late = list(islice(is_late, at_most - len(refused)))
            refused += [self._describe(admission, place, now) for place, admission in enumerate(late, 1)]
            for admission in late:
                queue.leave(admission)
                admission.state = "ended"
                admission.session.waiting -= 1
                self._live.on_idle(admission.session, now)
                if admission.queue != "parked" and admission.session.name is not None:
                    self._refused[admission.session.name] = now
        return refused

    def _close(self, admission: Admission) -> bool:
        """Mark `admission` as ended; return whether it was already."""
        before, admission.state = admission.state, "ended"
        if before == "running" and admission.waited and admission.queue != "parked":
            self._starting -= 1
        return before == "ended"

    def _describe(self, admission: Admission, place: int, now: float) -> Queued:
        """Return the position and expected wait of `admission`, at `place` (from 1) of its own queue."""
        ahead = sum(len(self._queues[queue]) for queue in _up_to(admission.queue)[:-1])
        return Queued(admission, ahead + place, self._queues[admission.queue].expected_s(place, now))


def _up_to(queue: QueueName) -> tuple[QueueName, ...]:
    """Return `queue` and those served before it."""
    return QUEUES[: QUEUES.index(queue) + 1]


def _is_evicted(admission: Admission, local_tokens: int | None) -> bool:
    """Return whether the context is lost. A prompt that was cut down or restarted needs no more than it has."""
    last = admission.session.prompt_tokens or 0
    return local_tokens is not None and local_tokens < EVICTED_BELOW * (min(last, admission.prompt_tokens) or last)
