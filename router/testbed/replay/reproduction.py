"""A policy that decided in the log, deciding the same views again.

All that its choices hang on is in the view and in its spec, so every one must come out as it was logged. One that does
not is a bug, and named: in a plug-in that reads a clock or rolls dice of its own, in a version that decides otherwise,
or in Warmroute. Only a plug-in that learns from choices and outcomes may differ: what it had learned is in no log.
"""

from __future__ import annotations

import msgspec

from router.scheduling.policy.decision import Part
from router.scheduling.policy.policy import Policy, PolicyFault
from scorers.contract import View

NAMED = 5


class DifferentChoice(msgspec.Struct, frozen=True):
    """A choice that came out otherwise."""

    record: str
    part: Part
    logged: str  # target
    replayed: str  # target, or why there is none


class ReproductionResult(msgspec.Struct, frozen=True):
    """What one policy of the log made of its own views."""

    policy: str
    digest: str
    choices: int
    same: int
    learns: bool  # its choices may hang on what no log holds
    first: tuple[DifferentChoice, ...]  # that differ
    unbuilt: str | None  # why it could not be tried

    @property
    def whole(self) -> bool:
        return self.same == self.choices


class Reproduction:
    """`policy` None: it could not be built, and `unbuilt` says why; its choices are counted as not reproduced."""

    def __init__(self, name: str, digest: str, policy: Policy | None, unbuilt: str | None = None) -> None:
        self.policy = policy
        self._name, self._digest, self._unbuilt = name, digest, unbuilt
        self._choices = self._same = 0
        self._learns = False
        self._first: list[DifferentChoice] = []

    def add(self, record: str, view: View, part: Part, logged: str) -> None:
        """`logged`: the target that was chosen."""
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

    def reproduced(self) -> ReproductionResult:
        return ReproductionResult(
            self._name, self._digest, self._choices, self._same, self._learns, tuple(self._first), self._unbuilt
        )
