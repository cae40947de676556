"""A plain cap: at most `per_target` requests at a time for each target that serves the model, first come first
served.

Many deployments do this in front of their engines (`max_num_seqs`, a proxy's connection limit). The rule does not
consider sessions: the places go round among all of them, so the rule bounds the queue in the engines, not the
memory that sessions need between their turns.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from scorers.admission.contract import Admission, AdmissionRule, AgentProgram, Answer, FleetMemory, Queues
from scorers.parameters import check_at_least


@dataclass(eq=False)
class Concurrency(AdmissionRule):
    """Counts the requests that run. Needs no facts of engines but their number; without any target all begin."""

    per_target: int = 16

    _running: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        check_at_least(1, per_target=self.per_target)

    def adopt(self, programs: Iterable[AgentProgram], now: float, *, idle_s: float, pooled: bool) -> None:
        self._running = sum(program.running for program in programs)

    def begins(self, admission: Admission, queues: Queues, fleet: FleetMemory, now: float) -> bool:
        return not any(queues.values()) and self._has_room(fleet)

    def next_to_begin(self, queues: Queues, fleet: FleetMemory, now: float) -> Admission | None:
        if not self._has_room(fleet):
            return None
        firsts = [queue.first for queue in queues.values() if queue.first is not None]
        return min(firsts, key=lambda first: first.since_s, default=None)

    def began(self, admission: Admission, now: float) -> None:
        self._running += 1

    def ended(self, admission: Admission, answer: Answer | None, now: float) -> None:
        self._running -= 1

    def _has_room(self, fleet: FleetMemory) -> bool:
        return not fleet.targets or self._running < self.per_target * len(fleet.targets)
