"""llm-d's flow control with its ordering policy EDF, to compare with: the earliest deadline first, over all
clients.

    saturation = mean over targets of max(waiting / 5, kv_usage / 0.8)       hold requests while it is 1 or more
    order      = by deadline (arrival + `x-slo-ttft-ms`), then by arrival; a request without a deadline comes last

Source: llm-d-inference-scheduler, `pkg/epp/flowcontrol` and the utilization detector, with its defaults. In llm-d a
target whose metrics are older than 200 ms counts as saturated. Here the last report counts however old it is, since
this router polls every 250 ms, and requests sent since the report count as waiting until their first token;
otherwise all waiting requests would begin between two reports. As in llm-d, a request whose deadline has passed is
still computed, until its time to live ends (`admission.max_wait_s`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from scorers.admission.contract import Admission, AdmissionRule, FleetMemory, Queues
from scorers.admission.engine_room import REPORT_S
from scorers.parameters import check_above_0


@dataclass(eq=False)
class Edf(AdmissionRule):
    """Targets that have reported nothing have room; without targets everything begins."""

    waiting_at_most: float = 5.0
    kv_usage_at_most: float = 0.8

    _due_s: float = field(init=False, default=inf)

    def __post_init__(self) -> None:
        check_above_0(waiting_at_most=self.waiting_at_most, kv_usage_at_most=self.kv_usage_at_most)

    def begins(self, admission: Admission, queues: Queues, fleet: FleetMemory, now: float) -> bool:
        return not any(queues.values()) and not self._is_saturated(fleet, now)

    def next_to_begin(self, queues: Queues, fleet: FleetMemory, now: float) -> Admission | None:
        if self._is_saturated(fleet, now):
            return None
        return min((one for queue in queues.values() for one in queue), key=_deadline, default=None)

    def due_s(self) -> float | None:
        return None if self._due_s == inf else self._due_s

    def _is_saturated(self, fleet: FleetMemory, now: float) -> bool:
        shares = [
            max(
                max(load.waiting or 0, load.prefilling) / self.waiting_at_most,
                (load.kv_usage or 0.0) / self.kv_usage_at_most,
            )
            for load in fleet.loads
        ]
        full = bool(shares) and sum(shares) >= len(shares)
        self._due_s = now + REPORT_S if full else inf
        return full


def _deadline(admission: Admission) -> tuple[float, float]:
    deadline_s = admission.claim.deadline_s
    return (inf if deadline_s is None else deadline_s), admission.since_s
