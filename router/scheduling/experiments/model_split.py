"""Splits of an alias: several models, or revisions of one model, share its requests and are compared like policies.

Units are drawn like those of an experiment (`policy_set.draw_arm`), so a session stays with one model across
restarts and on every replica. The alias's name is part of the draw: with the same arms and seed, two splits, or a
split and an experiment, draw a session's arms independently of each other. The statistics and the guard are those
of `experiment.py`.

An arm that was rolled back stays in the draw, and its units go to the first arm: no other unit moves. The first arm
itself is never rolled back, because no arm is known to be better.

If another model than its arm's must answer a request, the request has failed for the arm, whichever model answers
(`leave`).
"""

from __future__ import annotations

from functools import cached_property
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from router.config.sections.models import AliasConfig, SplitArmConfig
from router.scheduling.experiments.experiment import RunningExperiment
from router.scheduling.experiments.policy_set import draw_arm
from router.scheduling.policy.record import Record

LEFT_STATUS = 503  # status, for the arm, of a request that another model answers
ROLLED_BACK = "it was rolled back"


class SplitAssignment(NamedTuple):
    """The arm of a unit. `drawn` is False if the unit was drawn for another arm, which was rolled back."""

    arm: str
    drawn: bool


class ModelSplit:
    """The split of the alias `name`."""

    def __init__(self, name: str, config: AliasConfig) -> None:
        self.name = name
        self.arms: dict[str, SplitArmConfig] = config.split
        self.spec = config.split_experiment
        self.first = next(iter(self.arms))
        self.rolled_back: frozenset[str] = frozenset()
        self.experiment = RunningExperiment(self.spec, self.arms)
        self._prefix = name.encode() + b"\0"

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the name and the settings, so that a rollback applies to exactly this split."""
        settings = [arm.model_dump_json() for arm in self.arms.values()]
        text = "\0".join((self.name, self.spec.model_dump_json(), *settings))
        return blake2b(text.encode(), digest_size=8).hexdigest()

    def assign(self, unit: bytes) -> SplitAssignment:
        """Return the arm of a unit, the same in every process unless an arm was rolled back."""
        arm = draw_arm(self.spec.seed, self.spec.shares, self._prefix + unit)
        if arm in self.rolled_back:
            return SplitAssignment(self.first, False)
        return SplitAssignment(arm, True)

    def begin(self, arm: str, unit: bytes, record: Record) -> None:
        """Count a request of a unit that was drawn for `arm`."""
        self.experiment.begin_request(arm, unit, record)

    def first_byte(self, record: Record) -> None:
        """Notify the experiment that the answer to a request has begun."""
        self.experiment.first_byte(record)

    def leave(self, record: Record, now_s: float) -> None:
        """Count a request as failed for its arm, because another model is going to answer it."""
        waited_ms = (now_s - record.arrived_s) * 1e3
        self.experiment.end_request(msgspec.structs.replace(record, status=LEFT_STATUS, duration_ms=waited_ms))

    def end(self, record: Record) -> None:
        """Count the outcome of a request, unless it was not counted by `begin` or has left."""
        self.experiment.end_request(record)

    def roll_back(self, arm: str) -> bool:
        """Move an arm's units to the first arm. Return False for the first arm, which stays, for an unknown arm,
        and for an arm that was already rolled back.
        """
        if arm == self.first or arm not in self.arms or arm in self.rolled_back:
            return False
        self.rolled_back |= {arm}
        self.experiment.exclude_arm(arm, ROLLED_BACK)
        return True

    def restart(self, experiment: RunningExperiment) -> None:
        """Count requests in `experiment` from now on, without the arms that were rolled back."""
        self.experiment = experiment
        for arm in self.rolled_back:
            experiment.exclude_arm(arm, ROLLED_BACK)
