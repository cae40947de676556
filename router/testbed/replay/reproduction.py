"""A policy that decided in the log, deciding the same views again.

Its choices depend on the view and its definition only, so each must come out as logged. One that does not is a bug and
is reported: in a plug-in that reads a clock or has a random generator of its own, in a version that decides otherwise,
or in Warmroute. Only a plug-in that learns from choices and outcomes may differ: what it had learned is in no log.
"""

from __future__ import annotations

import msgspec

from router.scheduling.policy.decision import Part
from router.scheduling.policy.policy import Policy, PolicyFault
from scorers.contract import View

NAMED = 5


class DifferentChoice(msgspec.Struct, frozen=True):
    """A choice that came out different."""

    record: str
    part: Part
    logged: str  # target
    replayed: str  # target, or the reason why there is none


class ReproductionResult(msgspec.Struct, frozen=True):
    """Counts of a policy's logged choices, decided again."""

    policy: str
    digest: str
    choices: int
    same: int
    learns: bool  # its choices may depend on what no log holds
    first: tuple[DifferentChoice, ...]  # of the choices that differ
    unbuilt: str | None  # the reason why it could not be built; None: it was

    @property
    def whole(self) -> bool:
        """Return whether every choice came out the same."""
        return self.same == self.choices


class Reproduction:
    """Decides a policy's choices again.

    `policy` None: it could not be built, for the reason `unbuilt`; its choices count as not reproduced.
    """

    def __init__(self, name: str, digest: str, policy: Policy | None, unbuilt: str | None = None) -> None:
        self.policy = policy
        self._name, self._digest, self._unbuilt = name, digest, unbuilt
        self._choices = self._same = 0
        self._learns = False
        self._first: list[DifferentChoice] = []

    def add(self, record: str, view: View, part: Part, logged: str) -> None:
        """Decide on `view` again; `logged` is the target that was chosen."""
        self._choices += 1
        if self.policy is None:
            return
        try:
            again = self.policy.decide(view, part)
        except PolicyFault as fault:
            replayed = str(fault)
        else:
            replayed = again.target
            self._learns = self._learns or bool(again.learners)
        if replayed == logged:
            self._same += 1
        elif len(self._first) < NAMED:
            self._first.append(DifferentChoice(record, part, logged, replayed))

    def result(self) -> ReproductionResult:
        """Return the counts so far."""
        return ReproductionResult(
            self._name, self._digest, self._choices, self._same, self._learns, tuple(self._first), self._unbuilt
        )
