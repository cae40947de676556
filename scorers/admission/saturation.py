"""Fair shares alone: requests wait while all engines are saturated, and sessions are not counted.

`engine_room.py` says what "saturated" means. Who is next, by the tenants' weights, sessions, priorities and deadlines,
is the router's matter (`router/request/admission/fair_order.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import ClassVar, Literal

from scorers.admission.contract import AdmissionRule, FleetMemory
from scorers.admission.engine_room import EngineRoom


@dataclass(eq=False)
class Saturation(AdmissionRule):
    """Sessions always have their place. While no target is known, nothing waits."""

    shares: ClassVar[Literal["never", "tenants", "always"]] = "always"

    _room: EngineRoom = field(init=False, default_factory=EngineRoom, repr=False)

    def saturated(self, prompt_tokens: int, fleet: FleetMemory, now: float) -> bool:
        return not self._room.find(prompt_tokens, fleet, now)

    def engines_with_room(self, fleet: FleetMemory, now: float) -> frozenset[str] | None:
        return self._room.list_targets(fleet, now)

    def due_s(self) -> float | None:
        return None if self._room.due_s == inf else self._room.due_s
