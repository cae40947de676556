"""Tokens that each program holds at each target: the books of rules that count memory per target.

A program holds its context as the router counts it. It is running while one of its requests runs, else silent (its
tool runs). Sums are kept per target, so that reading them costs the same however many programs exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from scorers.admission.contract import AgentProgram, FleetMemory


class TargetPrograms:
    """The programs at one target, in the order in which they were bound."""

    __slots__ = ("held", "running_tokens", "silent_tokens")

    def __init__(self) -> None:
        self.held: dict[AgentProgram, int] = {}  # tokens, negative while the program is silent
        self.running_tokens = 0
        self.silent_tokens = 0

    def __len__(self) -> int:
        return len(self.held)

    def __iter__(self) -> Iterator[AgentProgram]:
        return iter(self.held)

    @property
    def tokens(self) -> int:
        return self.running_tokens + self.silent_tokens


class Bindings:
    def __init__(self) -> None:
        self._targets: dict[str, TargetPrograms] = {}
        self._target_of: dict[AgentProgram, str] = {}

    def __contains__(self, program: AgentProgram) -> bool:
        return program in self._target_of

    def __len__(self) -> int:
        return len(self._target_of)

    @property
    def targets(self) -> Iterable[str]:
        """The targets to which programs were ever bound, except forgotten ones."""
        return self._targets

    @property
    def tokens(self) -> int:
        return sum(programs.tokens for programs in self._targets.values())

    def at(self, target: str) -> TargetPrograms:
        return self._targets.setdefault(target, TargetPrograms())

    def target_of(self, program: AgentProgram) -> str | None:
        return self._target_of.get(program)

    def bind(self, program: AgentProgram, target: str) -> None:
        """Bind a program to `target`, or move it there."""
        self.unbind(program)
        self._target_of[program] = target
        self._add(program, self.at(target))

    def unbind(self, program: AgentProgram) -> None:
        """Remove a program, if it is bound."""
        if (target := self._target_of.pop(program, None)) is not None:
            _remove(program, self._targets[target])

    def update(self, program: AgentProgram) -> None:
        """Count a bound program with its present context, as running or silent."""
        if (target := self._target_of.get(program)) is not None:
            programs = self._targets[target]
            _remove(program, programs)
            self._add(program, programs)

    def move_from_missing(self, fleet: FleetMemory) -> None:
        """Forget targets that the fleet no longer has, with the programs bound to them, whose contexts are gone."""
        known = {memory.target for memory in fleet.targets}
        for target in [target for target in self._targets if target not in known]:
            for program in list(self._targets[target]):
                self.unbind(program)
            del self._targets[target]

    def _add(self, program: AgentProgram, programs: TargetPrograms) -> None:
        tokens = program.context_tokens
        if program.running:
            programs.running_tokens += tokens
            programs.held[program] = tokens
        else:
            programs.silent_tokens += tokens
            programs.held[program] = -tokens


def _remove(program: AgentProgram, programs: TargetPrograms) -> None:
    held = programs.held.pop(program)
    if held >= 0:
        programs.running_tokens -= held
    else:
        programs.silent_tokens += held
