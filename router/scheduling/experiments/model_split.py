"""Splits of an alias: several models, or revisions of one, that share its requests, compared like policies.

Units are drawn as those of an experiment are (`policy_set.draw_arm`), so that a session stays with one model over
restarts and on every replica. The alias's name is part of what is drawn by: two splits with the same arms and seed,
or a split and an experiment, put a session on arms that say nothing of each other. The statistics and the guard are
those of `experiment.py`.

An arm that was rolled back stays in the draw, and its units go to the first arm: no other unit moves. The first arm
itself stays in whatever happens: there is nothing that is known to be better.

A request that another model than its arm's must answer has failed for the arm, whoever answers it then: `leave`.
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

LEFT_STATUS = 503  # of an arm's request that another model answers
ROLLED_BACK = "it was rolled back"


class SplitAssignment(NamedTuple):
    """The arm that a unit is on, and whether it was drawn for it; False: it came from one that was rolled back."""

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
        """A hash of the name and the settings: a rollback counts for exactly this split."""
        settings = [arm.model_dump_json() for arm in self.arms.values()]
        text = "\0".join((self.name, self.spec.model_dump_json(), *settings))
        return blake2b(text.encode(), digest_size=8).hexdigest()

    def assign(self, unit: bytes) -> SplitAssignment:
        """Return the arm of a unit: the same in every process, unless an arm was rolled back."""
        arm = draw_arm(self.spec.seed, self.spec.shares, self._prefix + unit)
        if arm in self.rolled_back:
            return SplitAssignment(self.first, False)
        return SplitAssignment(arm, True)

    def begin(self, arm: str, unit: bytes, record: Record) -> None:
        """Count a request of a unit that was drawn for `arm`."""
        self.experiment.begin_request(arm, unit, record)

    def first_byte(self, record: Record) -> None:
        """Note that the answer of a request has begun."""
        self.experiment.first_byte(record)

    def leave(self, record: Record, now_s: float) -> None:
        """Count a request as failed for its arm: another model is going to answer it."""
        waited_ms = (now_s - record.arrived_s) * 1e3
        self.experiment.end_request(msgspec.structs.replace(record, status=LEFT_STATUS, duration_ms=waited_ms))

    def end(self, record: Record) -> None:
        """Count the outcome of a request, if it began here and has not left."""
        self.experiment.end_request(record)

    def roll_back(self, arm: str) -> bool:
        """Take an arm's share away. Return False for the first arm, which stays, and for an arm that is out."""
        if arm == self.first or arm not in self.arms or arm in self.rolled_back:
            return False
        self.rolled_back |= {arm}
        self.experiment.exclude_arm(arm, ROLLED_BACK)
        return True

    def restart(self, experiment: RunningExperiment) -> None:
        """Count in `experiment` from now on, without the arms that were rolled back."""
        self.experiment = experiment
        for arm in self.rolled_back:
            experiment.exclude_arm(arm, ROLLED_BACK)
