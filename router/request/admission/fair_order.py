"""Who is next while engines are saturated: the tenant that was charged least for its weight, then what it wants first.

    tenants     by virtual time (`virtual_time.py`): charge / weight
    in a tenant by priority, deadline and session (`tenant_lane.py`)

Requests wait in lanes: `live` or not (a rule may hold the others for memory), and by the engine that holds most of
their prompts, their `home`. Where the home of who is next has no room and another engine does, a request that hits
something there, or nothing anywhere, goes first: no cached prompt is computed again at another engine only because its
own was busy for a moment. The bound: a tenant is overtaken by each other one until that is `OVERTAKING_TOKENS` of its
own share ahead, a session of the same tenant likewise, and never by a less urgent priority. A request with a deadline
is not overtaken, nor is one that its tenant has passed over too often.

A charge is an estimate when a request begins and is corrected when it ends. Books are exact: what was opened is closed
once. Time per operation is logarithmic in the number of requests, and linear in the number of engines for `first`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from math import inf
from typing import NamedTuple, cast

from router.request.admission.queue import Pace
from router.request.admission.tenant_lane import PassedOver, Session, TenantLane
from router.request.admission.virtual_time import Flow, FlowHeap, VirtualClock
from scorers.admission.contract import Admission, AgentProgram

OVERTAKING_TOKENS = 16_384  # a few turns of an agent: two steps of an engine with vLLM's default budget

TenantName = str | None


class _LaneKey(NamedTuple):
    live: bool
    home: str | None  # None: no engine holds anything of its prompt, or that is unknown


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
    """A request from its arrival to its end. `lane` None: it does not wait. `charge` in tokens, while it runs."""

    __slots__ = ("charge", "lane", "session", "tenant")

    def __init__(self, tenant: TenantFlow, session: Session) -> None:
        self.tenant = tenant
        self.session = session
        self.lane: _LaneKey | None = None
        self.charge = 0.0


class TenantShare(NamedTuple):
    """A tenant as of now."""

    name: TenantName
    weight: float
    waiting: int
    running: int
    charged_tokens: float  # since it last had nothing to do
    ahead_tokens: float  # of virtual time, before the clock; below 0: it is owed that


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

    def join(self, admission: Admission, home: str | None) -> None:
        """Let a request wait. `home`: the engine that holds most of its prompt; None: none does, or it is unknown."""
        place = self._places[admission]
        tenant, session = place.tenant, place.session
        self._lift(tenant, session)
        tenant.waiting += 1
        key = place.lane = _LaneKey(admission.queue == "live", home)
        if (lane := tenant.lanes.get(key)) is None:
            lane = tenant.lanes[key] = TenantLane()
        lane.join(admission, session)
        if admission.claim.deadline_s is None:
            tenant.passed_over[key.live].join(admission)
        self._lanes.setdefault(key, FlowHeap()).put(tenant)

    def begin(self, admission: Admission, tokens: float, now: float) -> None:
        """Charge a request that begins, with an estimate. It may wait, or have come just now."""
        if (place := self._places.get(admission)) is None:
            return
        if place.lane is not None:
            place.tenant.pace.add(now)
        else:
            self._lift(place.tenant, place.session)
        self._unqueue(admission, place, begins=True)
        place.tenant.running += 1
        place.charge = tokens
        self._clock.begin(place.tenant, tokens)
        place.tenant.sessions.begin(place.session, tokens)

    def end(self, admission: Admission, tokens: float | None) -> None:
        """Forget a request, whether it waits or runs. `tokens`: what it should have been charged; None: what it was."""
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

    def _lift(self, tenant: TenantFlow, session: Session) -> None:
        """Take their credit from a tenant and a session of which nothing waits."""
        if not tenant.waiting:
            first = self._least(list(self._lanes))
            self._clock.lift(tenant, None if first is None else first.time)
        if session.open == 1:
            tenant.sessions.lift(session)

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

    # who is next

    def first(self, rooms: Collection[str] | None, *, live: bool = False) -> Admission | None:
        """Return who begins next, given the engines that have `rooms` (None: no engine is held). `live`: of those only
        that wait for an engine and nothing else. None: none waits.
        """
        keys = [key for key in self._lanes if key.live or not live]
        tenant = self._least(keys)
        if tenant is None:
            return None
        for kind in (True,) if live else (True, False):
            if (due := tenant.passed_over[kind].due()) is not None:
                return due
        head = min((first for key in keys if (first := self._first(tenant, key)) is not None), key=self._urgency)
        place = self._places[head]
        assert place.lane is not None
        if rooms is None or place.lane.home is None or place.lane.home in rooms or head.claim.deadline_s is not None:
            return head
        return self._overtaking(head, [key for key in keys if key.home is None or key.home in rooms]) or head

    def _overtaking(self, head: Admission, keys: list[_LaneKey]) -> Admission | None:
        """Return who of these lanes begins before `head`."""
        held, found, least = self._places[head], None, inf
        for key in keys:
            tenant = cast("TenantFlow | None", self._lanes[key].first())
            first = None if tenant is None else self._first(tenant, key)
            if tenant is None or first is None or first.claim.priority > head.claim.priority:
                continue
            ahead = (tenant.time - held.tenant.time) * held.tenant.weight
            if tenant is held.tenant:
                ahead = self._places[first].session.time - held.session.time
            if ahead <= OVERTAKING_TOKENS and tenant.time < least:
                found, least = first, tenant.time
        return found

    def _least(self, keys: list[_LaneKey]) -> TenantFlow | None:
        """Return the tenant with the least time that waits in one of these lanes."""
        firsts = (self._lanes[key].first() for key in keys)
        return cast("TenantFlow | None", min((one for one in firsts if one is not None), key=_time, default=None))

    def _first(self, tenant: TenantFlow, key: _LaneKey) -> Admission | None:
        lane = tenant.lanes.get(key)
        return None if lane is None else lane.first()

    def _urgency(self, admission: Admission) -> tuple[int, float, float, float]:
        priority, deadline_s = admission.claim.priority, admission.claim.deadline_s
        session = self._places[admission].session
        return priority, inf if deadline_s is None else deadline_s, session.time, admission.since_s

    # for people

    def describe(self, admission: Admission, now: float) -> tuple[int, float | None]:
        """Return how many requests of the same tenant wait, and the wait until all of them have begun, in seconds; None
        where that is unknown.
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
