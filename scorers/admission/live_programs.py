"""The live programs of a model, and the sum of their context lengths at any moment.

A program with a running request counts with its context, less the tokens that it shares with others at its target;
a silent program counts with its probability to return (`return_probability.py`). If a silent program is charged for
tokens that a running one shares with it, that probability applies to the shared tokens too; on agents with
sub-agents this was 1 % of the sum.

Sums are kept per stage of silence, so a request costs the same however many programs there are.

Programs that have returned before and programs that never did are estimated separately, each kind from its own
silences: a prompt that is sent once, under a name that is never used again, must not pass for a conversation.
"""

from __future__ import annotations

from collections import OrderedDict
from math import inf
from typing import NamedTuple

from scorers.admission.contract import AgentProgram, ExpectedLoad
from scorers.admission.return_probability import STAGES, ReturnProbability


class _Place(NamedTuple):
    """Kind and stage under which a silent program is counted."""

    kind: int
    stage: int


class _Running(NamedTuple):
    context_tokens: int
    own_tokens: int


class _Silent(NamedTuple):
    due_s: float  # when its stage ends
    own_tokens: int


class SilenceStage(OrderedDict[AgentProgram, _Silent]):
    """The silent programs of one stage and kind, in the order in which they entered it, which is also the order in
    which their stage ends.
    """

    def __init__(self) -> None:
        super().__init__()
        self.own_tokens = 0  # an integer, so that subtracting an added count is exact


class LivePrograms:
    def __init__(self, idle_s: float) -> None:
        self._running: dict[AgentProgram, _Running] = {}  # as counted
        self._running_tokens = self._running_own_tokens = 0
        self._places: dict[AgentProgram, _Place] = {}
        self._kinds = [(ReturnProbability(idle_s), [SilenceStage() for _ in range(STAGES)]) for _ in range(2)]
        self.next_s = inf  # when `advance` next has something to do, or a little earlier

    def expected_load(self) -> ExpectedLoad:
        """Return the expected number of programs and the sum of their contexts, in which tokens shared at a target
        count once.
        """
        programs, context = float(len(self._running)), float(self._running_own_tokens)
        for probability, stages in self._kinds:
            for chance, stage in zip(probability.chances, stages, strict=True):
                if stage:
                    programs += chance * len(stage)
                    context += chance * stage.own_tokens
        return ExpectedLoad(programs, context)

    @property
    def running_tokens(self) -> int:
        """The sum of the contexts of programs with a running request, each counted in full."""
        return self._running_tokens

    # what happens to one program

    def on_arrival(self, program: AgentProgram) -> None:
        """Note that a request arrived: the program is no longer silent, and does not count until `update`."""
        if (place := self._places.get(program)) is not None:
            self._kinds[place.kind][0].add_return(place.stage)
            self._leave(program, place)

    def update(self, program: AgentProgram) -> None:
        """Count a program with its present context while requests of it run, or wait with its place kept."""
        if (counted := self._running.pop(program, None)) is not None:
            self._running_tokens -= counted.context_tokens
            self._running_own_tokens -= counted.own_tokens
        if program.running or program.kept:
            self._running[program] = _Running(program.context_tokens, program.own_tokens)
            self._running_tokens += program.context_tokens
            self._running_own_tokens += program.own_tokens

    def recount(self, program: AgentProgram) -> None:
        """Recount a program whose shared part has changed, with its present context, if it counts at all."""
        if program in self._running:
            self.update(program)
        elif (place := self._places.get(program)) is not None:
            stage = self._kinds[place.kind][1][place.stage]
            silent = stage[program]
            stage[program] = silent._replace(own_tokens=program.own_tokens)
            stage.own_tokens += program.own_tokens - silent.own_tokens

    def on_idle(self, program: AgentProgram, now: float) -> None:
        """Begin a silence."""
        self._enter(program, _Place(program.returned, 0), now)

    def forget(self, program: AgentProgram) -> None:
        """Stop counting a program. A program in the last stage has stayed silent to the end of the stage."""
        if (place := self._places.get(program)) is not None:
            if place.stage == STAGES - 1:
                self._kinds[place.kind][0].add_survival(place.stage)
            self._leave(program, place)

    def advance(self, now: float) -> None:
        """Move silent programs on to their next stages; as a rule there is nothing to do."""
        if now < self.next_s:
            return
        self.next_s = inf
        for kind, (probability, stages) in enumerate(self._kinds):
            for number, stage in enumerate(stages[:-1]):  # the last stage ends when the program is forgotten
                while stage and (due_s := next(iter(stage.values())).due_s) <= now:
                    probability.add_survival(number)
                    program = next(iter(stage))
                    self._leave(program, _Place(kind, number))
                    self._enter(program, _Place(kind, number + 1), due_s)
                if stage:
                    self.next_s = min(self.next_s, next(iter(stage.values())).due_s)

    def _enter(self, program: AgentProgram, place: _Place, at_s: float) -> None:
        probability, stages = self._kinds[place.kind]
        silent = _Silent(at_s + probability.lengths_s[place.stage], program.own_tokens)
        self._places[program] = place
        stages[place.stage][program] = silent
        stages[place.stage].own_tokens += silent.own_tokens
        if place.stage < STAGES - 1:
            self.next_s = min(self.next_s, silent.due_s)

    def _leave(self, program: AgentProgram, place: _Place) -> None:
        stage = self._kinds[place.kind][1][place.stage]
        stage.own_tokens -= stage.pop(program).own_tokens
        del self._places[program]
