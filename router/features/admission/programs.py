"""The programs of one model by name, as passed to an admission rule; silent programs are forgotten after `idle_s`.

As long as clients do not report which sessions belong together, a program is one session. Beyond `MAX_PROGRAMS`,
the program that has been silent for longest is forgotten.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

from scorers.admission.contract import AgentProgram

MAX_PROGRAMS = 100_000  # of a model, about 400 bytes each


class Programs:
    """`on_forget` is called with every program that is dropped."""

    def __init__(self, idle_s: float, on_forget: Callable[[AgentProgram], None]) -> None:
        self.idle_s = idle_s
        self._on_forget = on_forget
        self._by_name: dict[bytes, AgentProgram] = {}
        self._unnamed: set[AgentProgram] = set()  # programs whose only request runs or waits
        self._silent: OrderedDict[AgentProgram, float] = OrderedDict()  # since when, the longest silence first

    def __len__(self) -> int:
        """Count all named programs, however long they have been silent."""
        return len(self._by_name)

    def __iter__(self) -> Iterator[AgentProgram]:
        """Iterate over the programs with running or waiting requests, then over the silent ones, longest silence
        first.
        """
        yield from self._unnamed
        yield from (program for program in self._by_name.values() if program.silent_since_s is None)
        yield from self._silent

    def latest(self) -> Iterator[AgentProgram]:
        """Iterate over the silent programs, the shortest silence first."""
        return reversed(self._silent)

    def find(self, name: bytes | None) -> AgentProgram | None:
        return None if name is None else self._by_name.get(name)

    def get_or_create(self, name: bytes | None) -> AgentProgram:
        """Return the program called `name`, or a new one."""
        if name is None:
            self._unnamed.add(unnamed := AgentProgram(None))
            return unnamed
        if (program := self._by_name.get(name)) is None:
            program = self._by_name[name] = AgentProgram(name)
            if len(self._by_name) > MAX_PROGRAMS and self._silent:
                self._forget(next(iter(self._silent)))
        return program

    def wake(self, program: AgentProgram) -> None:
        """End the silence of `program`, if it is silent."""
        if program.silent_since_s is not None:
            del self._silent[program]
            program.silent_since_s = None
            program.returned = True

    def rest(self, program: AgentProgram, now: float) -> bool:
        """Begin a silence, and return True; or forget a program that cannot come back or was never answered, and
        return False.
        """
        if program.name is not None and program.prompt_tokens is not None:
            program.silent_since_s = now
            self._silent[program] = now
            return True
        self._forget(program)
        return False

    def advance(self, now: float) -> None:
        """Forget the programs that have been silent for `idle_s`."""
        while self._silent:
            program, since_s = next(iter(self._silent.items()))
            if since_s + self.idle_s > now:
                return
            self._forget(program)

    @property
    def next_s(self) -> float | None:
        """The time at which `advance` has something to do; None if no program is silent."""
        return next(iter(self._silent.values())) + self.idle_s if self._silent else None

    def _forget(self, program: AgentProgram) -> None:
        if program.name is None:
            self._unnamed.discard(program)
        else:
            del self._by_name[program.name]
        self._silent.pop(program, None)
        self._on_forget(program)
