"""ThunderAgent's program-aware admission (arXiv 2602.13692): pause programs on a full target, resume them by best
fit.

Every program is bound to one target and charged there for its context of T tokens: T while one of its requests
runs, `w` T while its tool runs, and 100 tokens more for its answer.

    used      = sum of charges                                          per target, cap = its KV tokens
    pause     used > 0.95 cap: until used <= 0.80 cap, silent programs, the smallest first; then running ones, which
              are only marked and paused when their requests end
    resume    used + charge <= 0.85 cap: the largest first, each onto the target with most room; first programs with a
              request that were answered before, then new ones, then paused ones whose tools still run. For this sum a
              silent program's charge halves every second
    anyway    after 1,800 s

Pauses and resumptions happen every 5 s; resumption uses the room before the pauses. A new program begins at once if
nothing waits and it fits.

The constants are the defaults of NVIDIA Dynamo's plug-in for this rule. Deviations: the router's policy chooses the
target, so the binding follows that choice; prefixes that programs share are charged to each of them; a program is
forgotten after `admission.idle_s`, in Dynamo after 1,800 s; a program alone at its target may exceed the limit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from scorers.admission.bindings import Bindings
from scorers.admission.contract import (
    Admission,
    AdmissionRule,
    AgentProgram,
    Answer,
    ExpectedLoad,
    FleetMemory,
    Queues,
)
from scorers.parameters import check_above_0, check_shares


@dataclass(eq=False)
class Thunderagent(AdmissionRule):
    """Targets whose engines have not reported a capacity take no part; without any capacity everything begins."""

    pause_above: float = 0.95
    pause_to: float = 0.8
    resume_below: float = 0.85
    acting_weight: float = 1.0
    buffer_tokens: int = 100
    halves_after_s: float = 1.0
    every_s: float = 5.0
    forced_after_s: float = 1800.0

    _bound: Bindings = field(init=False, default_factory=Bindings, repr=False)
    _paused: dict[AgentProgram, float] = field(init=False, default_factory=dict, repr=False)  # since when
    _marked: set[AgentProgram] = field(init=False, default_factory=set, repr=False)  # paused when requests end
    _room: dict[str, float] | None = field(init=False, default=None, repr=False)  # None: no resumption is due
    _resumed: deque[tuple[Admission, str]] = field(init=False, default_factory=deque, repr=False)
    _next_s: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        check_shares(pause_above=self.pause_above, pause_to=self.pause_to, resume_below=self.resume_below)
        check_above_0(halves_after_s=self.halves_after_s, every_s=self.every_s, forced_after_s=self.forced_after_s)

    def adopt(self, programs: Iterable[AgentProgram], now: float, *, idle_s: float, pooled: bool) -> None:
        self._next_s = now + self.every_s
        for program in programs:
            if program.target is not None and not program.waiting:
                self._bound.bind(program, program.target)

    # verdicts

    def begins(self, admission: Admission, queues: Queues, fleet: FleetMemory, now: float) -> bool:
        program = admission.program
        if program in self._bound or program.running or fleet.capacity_tokens is None:
            return True
        if program in self._paused or any(queues.values()):
            return False
        if (target := self._fitting(self._charge(admission), self._rooms(fleet))) is None:
            return False
        self._bound.bind(program, target)
        return True

    def next_to_begin(self, queues: Queues, fleet: FleetMemory, now: float) -> Admission | None:
        if fleet.capacity_tokens is None:
            return next((queue.first for queue in queues.values() if queue.first is not None), None)
        if self._room is not None:
            self._plan(queues, self._room, now)
            self._room = None
        while self._resumed:
            admission, target = self._resumed.popleft()
            if admission.state == "waiting":
                self._paused.pop(admission.program, None)
                self._bound.bind(admission.program, target)
                return admission
        return None

    def due_s(self) -> float | None:
        return self._next_s

    def expected_load(self) -> ExpectedLoad:
        return ExpectedLoad(len(self._bound), self._bound.tokens + self.buffer_tokens * len(self._bound))

    # facts

    def advance(self, fleet: FleetMemory, now: float) -> None:
        if now < self._next_s:
            return
        self._next_s = now + self.every_s
        self._bound.move_from_missing(fleet)
        self._resumed = deque(planned for planned in self._resumed if planned[0].state == "waiting")
        self._room = self._rooms(fleet, now)
        for memory in fleet.targets:
            if memory.capacity_tokens is not None:
                self._pause(memory.target, memory.capacity_tokens, now)

    def began(self, admission: Admission, now: float) -> None:
        self._bound.update(admission.program)

    def placed(self, admission: Admission, now: float) -> None:
        program = admission.program
        if program.target is not None and self._bound.target_of(program) != program.target:
            self._bound.bind(program, program.target)

    def ended(self, admission: Admission, answer: Answer | None, now: float) -> None:
        program = admission.program
        self._bound.update(program)
        if program in self._marked and not program.running:
            self._put_aside(program, now)

    def forgotten(self, program: AgentProgram) -> None:
        self._bound.unbind(program)
        self._marked.discard(program)
        self._paused.pop(program, None)

    # pausing and resuming

    def _used(self, target: str) -> float:
        programs = self._bound.at(target)
        acting = self.acting_weight * programs.silent_tokens
        return programs.running_tokens + acting + self.buffer_tokens * len(programs)

    def _pause(self, target: str, capacity_tokens: int, now: float) -> None:
        programs = self._bound.at(target)
        used = self._used(target) - sum(p.context_tokens for p in programs if p in self._marked)
        if used <= self.pause_above * capacity_tokens:
            return
        sizes = sorted(programs, key=lambda program: program.context_tokens)
        for program in [p for p in sizes if not p.running] + [p for p in sizes if p.running and p not in self._marked]:
            if used <= self.pause_to * capacity_tokens:
                return
            if program.running:
                self._marked.add(program)
                used -= program.context_tokens
            else:
                self._put_aside(program, now)
                used -= self.acting_weight * program.context_tokens + self.buffer_tokens

    def _put_aside(self, program: AgentProgram, now: float) -> None:
        self._marked.discard(program)
        self._bound.unbind(program)
        self._paused[program] = now

    def _rooms(self, fleet: FleetMemory, now: float | None = None) -> dict[str, float]:
        """Return the tokens that may still be resumed, per target. With `now`, the charges of silent programs decay."""
        known = [memory for memory in fleet.targets if memory.capacity_tokens is not None]
        return {memory.target: self._room_at(memory.target, memory.capacity_tokens or 0, now) for memory in known}

    def _room_at(self, target: str, capacity_tokens: int, now: float | None) -> float:
        """Return the tokens that may still be resumed at one target; infinite if no program is bound to it."""
        programs = self._bound.at(target)
        if not programs:
            return float("inf")
        silent: float = programs.silent_tokens
        if now is not None:
            silent = sum(
                program.context_tokens * 2 ** ((program.silent_since_s - now) / self.halves_after_s)
                for program in programs
                if program.silent_since_s is not None
            )
        used = programs.running_tokens + self.acting_weight * silent + self.buffer_tokens * len(programs)
        return self.resume_below * capacity_tokens - used

    def _plan(self, queues: Queues, room: dict[str, float], now: float) -> None:
        """Choose the requests and silent programs to resume, and their targets."""
        planned = {admission for admission, _ in self._resumed}
        for names in (("live", "parked"), ("again", "new")):
            waiting = [a for name in names for a in queues[name] if a not in planned]
            for admission in sorted(waiting, key=self._charge, reverse=True):
                forced = admission.since_s + self.forced_after_s <= now
                if (target := self._fitting(self._charge(admission), room, forced=forced)) is not None:
                    self._take(room, target, self._charge(admission))
                    self._resumed.append((admission, target))
        silent = [p for p, since_s in self._paused.items() if not p.waiting and since_s < now]
        for program in sorted(silent, key=lambda program: program.context_tokens, reverse=True):
            if (target := self._fitting(program.context_tokens + self.buffer_tokens, room)) is not None:
                self._take(room, target, program.context_tokens + self.buffer_tokens)
                del self._paused[program]
                self._bound.bind(program, target)

    def _charge(self, admission: Admission) -> int:
        return max(admission.prompt_tokens, admission.program.context_tokens) + self.buffer_tokens

    def _fitting(self, charge: float, room: dict[str, float], *, forced: bool = False) -> str | None:
        """Return the target with most room. None if `charge` does not fit there, unless `forced`."""
        target = max(room, key=lambda target: room[target], default=None)
        return target if target is not None and (forced or charge <= room[target]) else None

    def _take(self, room: dict[str, float], target: str, charge: float) -> None:
        room[target] = 0.0 if room[target] == float("inf") else room[target] - charge
