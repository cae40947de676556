"""Fair shares alone: requests wait while all engines are saturated, and sessions are not counted.

`engine_room.py` defines "saturated". The router chooses the next request, by the tenants' weights, sessions,
priorities and deadlines (`router/features/admission/fair_order.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from scorers.admission.contract import AdmissionRule, TargetLoad
from scorers.admission.engine_room import wait_for_room


@dataclass(eq=False)
class Saturation(AdmissionRule):
    """Sessions always have their place. While no target is known, nothing waits."""

    shares: ClassVar[Literal["never", "tenants", "always"]] = "always"

    def engine_wait(self, load: TargetLoad, new_tokens: int) -> float:
        return wait_for_room(load, new_tokens)
