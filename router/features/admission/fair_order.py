"""Order of requests while engines are saturated: the tenant charged least for its weight is next, with its most
urgent request.

    tenants     by virtual time (`virtual_time.py`): charge / weight
    in a tenant by priority, deadline and session (`tenant_lane.py`)

Requests wait in lanes, by two properties: whether they are `live` (a rule may hold the others for memory), and
which engines hold most of their prompts (their `holders`). If no holder has room for the next request but another
engine has, the request waits only if waiting gives an earlier first token: a holder will have room before the other
engine could compute what the holder has cached. Meanwhile other requests take the room. So a cached prompt is not
computed again elsewhere because its engine was busy for a moment, and the request is still next when its engine has
room. In all, a request waits for a holder no longer than the prefill time that the holder saves.

A charge is an estimate when a request begins. The charge is corrected when the request is sent to an engine and
when it ends. Every opened request is closed once. `first` takes time linear in the number of lanes, every other
operation time logarithmic in the number of requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from typing import NamedTuple, cast

from router.features.admission.queue import Pace
from router.features.admission.tenant_lane import PassedOver, Session, TenantLane
from router.features.admission.virtual_time import Flow, FlowHeap, VirtualClock
from scorers.admission.contract import Admission, AgentProgram

TenantName = str | None
WaitOf = Callable[[tuple[str, ...], Admission], float]
"""Seconds until the first of these targets has room for a request: 0 where one has, inf where all are gone."""


class _LaneKey(NamedTuple):
    live: bool
    holders: tuple[str, ...]  # empty: no engine holds anything of the prompt, or that is unknown


class TenantFlow(Flow[TenantName]):
    """A tenant with requests that wait or run, or with a debt."""

    __slots__ = ("lanes", "pace", "passed_over", "running", "sessions", "waiting")

    def __init__(self, name: TenantName, time: float) -> None:
        super().__init__(name, time)
        self.sessions: VirtualClock[AgentProgram] = VirtualClock()
        self.lanes: dict[_LaneKey, TenantLane] = {}
        self.passed_over = {True: PassedOver(), False: PassedOver()}  # live, or not
        self.pace = Pace()
        self.waiting = 0
        self.running = 0


class _Place:
    """A request from its arrival to its end. `lane` is None if it does not wait. `charge` is in tokens, set while
    it runs. `saves_s` is how many seconds sooner a holder computes its prompt than another engine; `leaves_s` is
    the time at which the request has waited for a holder that long, None if it has not yet waited for one.
    """

    __slots__ = ("charge", "lane", "leaves_s", "saves_s", "session", "tenant")

    def __init__(self, tenant: TenantFlow, session: Session) -> None:
        self.tenant = tenant
        self.session = session
        self.lane: _LaneKey | None = None
        self.charge = 0.0
        self.saves_s = 0.0
        self.leaves_s: float | None = None


class TenantShare(NamedTuple):
    """A tenant as of now."""

    name: TenantName
    weight: float
    waiting: int
    running: int
    charged_tokens: float  # since it last had nothing to do
    ahead_tokens: float  # its virtual time minus the clock; below 0: it is owed so many


class FairOrder:
    def __init__(self) -> None:
        self._clock: VirtualClock[TenantName] = VirtualClock(TenantFlow)
        self._lanes: dict[_LaneKey, FlowHeap[TenantName]] = {}
        self._places: dict[Admission, _Place] = {}

    def __len__(self) -> int:
        """Count the requests that wait or run."""
        return len(self._places)

    @property
    def tenants_known(self) -> int:
        """Number of tenants that wait, run, or have a debt."""
        return len(self._clock)

    # requests

    def open(self, admission: Admission) -> None:
        """Count a request that has arrived. `begin` or `join` follows."""
        tenant = cast(TenantFlow, self._clock.open(admission.claim.tenant))
        tenant.weight = admission.claim.weight
        self._places[admission] = _Place(tenant, tenant.sessions.open(admission.program))

    def join(self, admission: Admission, holders: tuple[str, ...] = (), saves_s: float = 0.0) -> None:
        """Let a request wait. `holders` are the known engines that hold most of its prompt; `saves_s` is how many
        seconds sooner a holder computes the prompt than another engine.
        """
        place = self._places[admission]
        place.saves_s = saves_s
        tenant, session = place.tenant, place.session
        self._lift(tenant, session, admission.since_s)
        tenant.waiting += 1
        key = place.lane = _LaneKey(admission.queue == "live", holders)
        if (lane := tenant.lanes.get(key)) is None:
            lane = tenant.lanes[key] = TenantLane()
        lane.join(admission, session)
        if admission.claim.deadline_s is None:
            tenant.passed_over[key.live].join(admission)
        self._lanes.setdefault(key, FlowHeap()).put(tenant)

    def begin(self, admission: Admission, tokens: float, now: float) -> None:
        """Charge an estimate to a request that begins, whether it waited or has just arrived."""
        if (place := self._places.get(admission)) is None:
            return
        if place.lane is not None:
            place.tenant.pace.add(now)
        else:
            self._lift(place.tenant, place.session, now)
        self._unqueue(admission, place, begins=True)
        place.tenant.running += 1
        place.charge = tokens
        self._clock.begin(place.tenant, tokens, now)
        place.tenant.sessions.begin(place.session, tokens, now)

    def charge(self, admission: Admission, tokens: float) -> None:
        """Replace the charge of a running request with a better estimate."""
        place = self._places[admission]
        self._correct(place.tenant, place.session, tokens - place.charge)
        place.charge = tokens

    def end(self, admission: Admission, tokens: float | None) -> None:
        """Forget a request, whether it waits or runs. `tokens` is its correct charge; None if its charge so far
        stands.
        """
        if (place := self._places.pop(admission, None)) is None:
            return
        tenant, session = place.tenant, place.session
        if place.lane is not None:
            self._unqueue(admission, place, begins=False)
        else:
            tenant.running -= 1
            if tokens is not None:
                self._correct(tenant, session, tokens - place.charge)
        tenant.sessions.close(session)
        self._clock.close(tenant)

    def _lift(self, tenant: TenantFlow, session: Session, now: float) -> None:
        if not tenant.waiting:
            self._clock.lift(tenant, now)
        if session.open == 1:
            tenant.sessions.lift(session, now)

    def _correct(self, tenant: TenantFlow, session: Session, tokens: float) -> None:
        self._clock.charge(tenant, tokens)
        tenant.sessions.charge(session, tokens)
        if tokens < 0:
            for key in tenant.lanes:
                self._lanes[key].put(tenant)

    def _unqueue(self, admission: Admission, place: _Place, *, begins: bool) -> None:
        if (key := place.lane) is None:
            return
        tenant, place.lane = place.tenant, None
        for waiting in tenant.passed_over.values():
            if begins:
                waiting.on_begin(admission)
            waiting.leave(admission)
        lane = tenant.lanes[key]
        lane.leave(admission, place.session)
        tenant.waiting -= 1
        if not tenant.waiting:
            tenant.pace.clear()
        if not lane:
            del tenant.lanes[key]
            tenants = self._lanes[key]
            tenants.remove(tenant)
            if not tenants:
                del self._lanes[key]

    # the next request

    def first(self, wait_s: WaitOf, now: float, *, live: bool = False) -> Admission | None:
        """Return the request that begins next; None if none waits, or all wait for engines that hold their prompts.
        `wait_s` returns the seconds until one of the given engines has room for a request. `live`: consider only
        requests that wait for nothing but an engine.
        """
        ready: dict[_LaneKey, bool] = {}
        for key in self._lanes:
            if (key.live or not live) and (elsewhere := self._goes_elsewhere(key, wait_s, now)) is not None:
                ready[key] = elsewhere
        tenant = self._least(list(ready))
        if tenant is None:
            return None
        for kind in (True,) if live else (True, False):
            if (due := tenant.passed_over[kind].due()) is not None:
                return due
        firsts = [(first, ready[key]) for key in ready if (first := self._first(tenant, key)) is not None]
        return min(firsts, key=self._urgency)[0]

    def _goes_elsewhere(self, key: _LaneKey, wait_s: WaitOf, now: float) -> bool | None:
        """Return whether the next request of a lane begins away from its holders, because none has room soon
        enough; None if it waits for a holder.
        """
        if not key.holders:
            return False
        tenant = self._lanes[key].first()
        first = None if tenant is None else self._first(cast(TenantFlow, tenant), key)
        if first is None:
            return None
        if (soonest_s := wait_s(key.holders, first)) <= 0:
            return False
        place = self._places[first]
        if place.leaves_s is None:
            place.leaves_s = now + place.saves_s
        return True if now + soonest_s >= place.leaves_s else None

    def _least(self, keys: list[_LaneKey]) -> TenantFlow | None:
        """Return the tenant with the least virtual time that waits in one of these lanes."""
        firsts = (self._lanes[key].first() for key in keys)
        return cast("TenantFlow | None", min((one for one in firsts if one is not None), key=_time, default=None))

    def _first(self, tenant: TenantFlow, key: _LaneKey) -> Admission | None:
        lane = tenant.lanes.get(key)
        return None if lane is None else lane.first()

    def _urgency(self, candidate: tuple[Admission, bool]) -> tuple[int, float, bool, float, float]:
        admission, elsewhere = candidate
        priority, deadline_s = admission.claim.priority, admission.claim.deadline_s
        session = self._places[admission].session
        return priority, inf if deadline_s is None else deadline_s, elsewhere, session.time, admission.since_s

    def is_owed(self, admission: Admission) -> bool:
        """Return whether the tenant of a request has had less than its share lately."""
        return self._places[admission].tenant.time < self._clock.now

    # for people

    def describe(self, admission: Admission, now: float) -> tuple[int, float | None]:
        """Return how many requests of the same tenant wait, and the seconds until all of them have begun; None for
        the seconds if unknown.
        """
        tenant = self._places[admission].tenant
        return tenant.waiting, tenant.pace.expected_s(tenant.waiting, now)

    def shares(self) -> Iterator[TenantShare]:
        for flow in self._clock:
            one = cast(TenantFlow, flow)
            ahead = one.time - self._clock.now
            yield TenantShare(one.key, one.weight, one.waiting, one.running, one.charged, ahead)


def _time(flow: Flow[TenantName]) -> float:
    return flow.time
