"""The waiting requests of one tenant for one engine, in the order in which they begin.

    1. the most urgent priority
    2. within a priority, requests with a deadline, the earliest first
    3. then requests without a deadline, from the session that was charged least (`virtual_time.py`)

In addition, `PassedOver` counts how often the tenant's oldest request without a deadline was passed over, in
whatever lane it waits: at every `PATIENCE`-th begin of the tenant, the oldest request begins. So when k older
requests of its tenant wait, a request begins after at most `PATIENCE` x (k + 1) begins of the tenant, whatever its
priority. A request with a deadline begins by its deadline or is refused.

All operations take time logarithmic in the number of requests.
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import heapify, heappop, heappush
from itertools import count

from router.features.admission.virtual_time import SPARE_ENTRIES, Flow, FlowHeap
from scorers.admission.contract import Admission, AgentProgram

PATIENCE = 8

Session = Flow[AgentProgram]


class _Band:
    """Waiting requests of one priority without a deadline."""

    def __init__(self) -> None:
        self._sessions: FlowHeap[AgentProgram] = FlowHeap()
        self._waiting: dict[Session, OrderedDict[Admission, None]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def join(self, admission: Admission, session: Session) -> None:
        self._waiting.setdefault(session, OrderedDict())[admission] = None
        self._sessions.put(session)

    def leave(self, admission: Admission, session: Session) -> None:
        waiting = self._waiting[session]
        del waiting[admission]
        if not waiting:
            del self._waiting[session]
            self._sessions.remove(session)

    def first(self) -> Admission | None:
        session = self._sessions.first()
        return None if session is None else next(iter(self._waiting[session]))


class PassedOver:
    """Waiting requests of a tenant without a deadline, in the order of arrival."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Admission, None] = OrderedDict()
        self._times = 0  # how often the first of them was passed over

    def join(self, admission: Admission) -> None:
        self._waiting[admission] = None

    def leave(self, admission: Admission) -> None:
        """Remove a request, if it is listed."""
        if self._waiting and admission is next(iter(self._waiting)):
            self._times = 0
        self._waiting.pop(admission, None)

    def on_begin(self, admission: Admission) -> None:
        """Record that a request of the tenant begins, listed here or not. Call it before `leave`."""
        if self._waiting and admission is not next(iter(self._waiting)):
            self._times += 1

    def due(self) -> Admission | None:
        """Return the oldest request if it must not be passed over again; None otherwise."""
        return next(iter(self._waiting)) if self._waiting and self._times >= PATIENCE - 1 else None


class TenantLane:
    def __init__(self) -> None:
        self._bands: dict[int, _Band] = {}
        self._priorities: list[int] = []  # heap of the bands' keys, each once, some outdated
        self._listed: set[int] = set()  # the same keys
        self._timed: list[tuple[int, float, int, Admission]] = []  # heap, some entries outdated
        self._timed_waiting: set[Admission] = set()
        self._untimed = 0  # waiting requests without a deadline
        self._order = count()

    def __len__(self) -> int:
        return self._untimed + len(self._timed_waiting)

    def join(self, admission: Admission, session: Session) -> None:
        priority, deadline_s = admission.claim.priority, admission.claim.deadline_s
        if deadline_s is not None:
            self._timed_waiting.add(admission)
            heappush(self._timed, (priority, deadline_s, next(self._order), admission))
            return
        if (band := self._bands.get(priority)) is None:
            band = self._bands[priority] = _Band()
            if priority not in self._listed:
                self._listed.add(priority)
                heappush(self._priorities, priority)
        band.join(admission, session)
        self._untimed += 1

    def leave(self, admission: Admission, session: Session) -> None:
        if admission in self._timed_waiting:
            self._timed_waiting.remove(admission)
            if len(self._timed) > 2 * len(self._timed_waiting) + SPARE_ENTRIES:
                self._timed = [entry for entry in self._timed if entry[3] in self._timed_waiting]
                heapify(self._timed)
            return
        self._untimed -= 1
        priority = admission.claim.priority
        band = self._bands[priority]
        band.leave(admission, session)
        if not band:
            del self._bands[priority]

    def first(self) -> Admission | None:
        """Return the request that begins next; None if none waits."""
        timed, band = self._first_timed(), self._first_band()
        if timed is not None and (band is None or timed.claim.priority <= band):
            return timed
        return None if band is None else self._bands[band].first()

    def _first_timed(self) -> Admission | None:
        while self._timed and self._timed[0][3] not in self._timed_waiting:
            heappop(self._timed)
        return self._timed[0][3] if self._timed else None

    def _first_band(self) -> int | None:
        while self._priorities and self._priorities[0] not in self._bands:
            self._listed.discard(heappop(self._priorities))
        return self._priorities[0] if self._priorities else None
