"""Enrolment: the open units of an experiment in order of arrival, and the names of closed ones.

A unit counts once. A unit that returned after it was closed would fall on the same arm again, which is no new
evidence. So names are remembered; the least recently seen name is forgotten first. Memory is bounded: `OPEN_UNITS`
units of about 800 bytes plus 24 bytes per request, and `CLOSED_UNITS` names of about 250 bytes. Units beyond
`OPEN_UNITS` are not enrolled, but counted as rejected.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque

from router.scheduling.experiments.unit import ExperimentUnit
from router.scheduling.policy.record import Record

OPEN_UNITS = 100_000
CLOSED_UNITS = 100_000
UNIT_REQUESTS = 20_000  # counted per unit


class Enrolment:
    """Each unit counts with its requests of the first `observe_s` seconds. `returns` is whether a unit may return
    after that.
    """

    def __init__(self, observe_s: float, returns: bool) -> None:
        self.open: Counter[int] = Counter()  # number of units by arm
        self.enrolled = 0
        self.rejected = 0  # units beyond `OPEN_UNITS`
        self.forgotten = 0  # names of closed units
        self._observe_s = observe_s
        self._returns = returns
        self._units: dict[bytes, ExperimentUnit] = {}
        self._queue: deque[bytes] = deque()
        self._closed: OrderedDict[bytes, None] = OrderedDict()  # a plain dict finds its first key slowly

    def __len__(self) -> int:
        return len(self._queue)

    def enrol(self, arm: int, name: bytes, record: Record) -> ExperimentUnit | None:
        """Return the unit that the request counts for, enrolled if new; None if the request does not count."""
        unit = self._units.get(name)
        if unit is not None:
            fits = unit.arm == arm and record.arrived_s <= unit.began_s + self._observe_s
            return unit if fits and len(unit.running) + len(unit.first_bytes) < UNIT_REQUESTS else None
        if name in self._closed:
            self._closed.move_to_end(name)
            return None
        if len(self._units) >= OPEN_UNITS:
            self.rejected += 1
            self._remember(name)
            return None
        unit = self._units[name] = ExperimentUnit(arm, record.arrived_s)
        self._queue.append(name)
        self.open[arm] += 1
        self.enrolled += 1
        return unit

    @property
    def first(self) -> ExperimentUnit | None:
        """The oldest open unit; None if no unit is open."""
        return self._units[self._queue[0]] if self._queue else None

    def has_elapsed(self, unit: ExperimentUnit, now_s: float) -> bool:
        """Return whether the unit's observation time is over."""
        return now_s >= unit.began_s + self._observe_s

    def leave(self) -> None:
        """Close the first unit."""
        name = self._queue.popleft()
        self.open[self._units.pop(name).arm] -= 1
        self._remember(name)

    def _remember(self, name: bytes) -> None:
        if not self._returns:
            return
        self._closed[name] = None
        if len(self._closed) > CLOSED_UNITS:
            self._closed.popitem(last=False)
            self.forgotten += 1
