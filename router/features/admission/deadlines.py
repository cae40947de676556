"""Waiting requests with deadlines, and an estimate of which deadlines can no longer be met.

    last moment to begin = deadline - slowdown x seconds that the prefill takes on an idle engine of typical speed

Engines decode beside a prefill, so the prefill takes longer than on an idle engine. `slowdown` is the mean ratio of
the measured to the estimated seconds, over requests with an estimate that waited before they began; at least 1.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count
from math import inf

from router.features.admission.virtual_time import SPARE_ENTRIES
from scorers.admission.contract import Admission

NEWEST = 0.05  # weight of the newest sample in the mean


class Deadlines:
    def __init__(self) -> None:
        self.slowdown = 1.0
        self._latest: list[tuple[float, int, Admission]] = []  # heap by the last moment, some entries outdated
        self._prefill_s: dict[Admission, float] = {}  # estimates of waiting requests
        self._begun: dict[Admission, tuple[float, float]] = {}  # estimated seconds, and when the request began
        self._order = count()

    def __len__(self) -> int:
        """Count the requests that wait."""
        return len(self._prefill_s)

    def join(self, admission: Admission, prefill_s: float) -> None:
        """Add a waiting request that has a deadline."""
        assert admission.claim.deadline_s is not None
        self._prefill_s[admission] = prefill_s
        latest_s = admission.claim.deadline_s - self.slowdown * prefill_s
        heappush(self._latest, (latest_s, next(self._order), admission))

    def leave(self, admission: Admission) -> None:
        """Forget a request, if it is known."""
        self._begun.pop(admission, None)
        self._prefill_s.pop(admission, None)
        if len(self._latest) > 2 * len(self._prefill_s) + SPARE_ENTRIES:
            self._latest = [entry for entry in self._latest if entry[2] in self._prefill_s]
            heapify(self._latest)

    def begin(self, admission: Admission, now: float) -> None:
        """Record that a request begins, to measure its prefill if it has waited here."""
        prefill_s = self._prefill_s.get(admission)
        self.leave(admission)
        if prefill_s is not None:
            self._begun[admission] = prefill_s, now

    def on_first_token(self, admission: Admission, now: float) -> None:
        """Learn how long a prefill took."""
        prefill_s, began_s = self._begun.pop(admission, (0.0, 0.0))
        if prefill_s > 0:
            sample = (now - began_s) / prefill_s
            self.slowdown = max(1.0, self.slowdown + NEWEST * (sample - self.slowdown))

    @property
    def next_s(self) -> float:
        """The earliest last moment to begin of all waiting requests; inf if none waits."""
        while self._latest and self._latest[0][2] not in self._prefill_s:
            heappop(self._latest)
        return self._latest[0][0] if self._latest else inf

    def late(self, now: float) -> Admission | None:
        """Return a request whose last moment to begin has passed; None if there is none."""
        return self._latest[0][2] if self.next_s <= now and self._latest else None
