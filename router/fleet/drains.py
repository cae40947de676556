"""Operators' drains of instances, agreed between processes without a common clock: a version per instance (Lamport).

A decision gets a version above all versions seen for its instance, so that it takes precedence over all decisions
before it. Of two decisions made at once, at two processes that could not reach each other, all choose the same one.
Decisions outlive the instance, and the process: a drained instance that comes back is drained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

MOST_DECISIONS = 1_000  # the oldest ones are dropped: each pod that was ever drained has a name of its own


class DrainDecision(msgspec.Struct, frozen=True):
    """An operator's decision. The highest `version` counts; among equal versions, the greatest `by`."""

    instance: str
    on: bool
    version: int
    by: str  # run id of the process that decided


class DrainDecisions:
    """The latest decision for each instance. `run` is the id of this process's run. `on_change` is called after a
    decision, whoever made it.
    """

    def __init__(self, run: str) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self._run = run
        self._latest: dict[str, DrainDecision] = {}

    def decide(self, instance: str, on: bool) -> None:
        """Record a decision made at this process."""
        latest = self._latest.get(instance)
        version = 1 if latest is None else latest.version + 1
        self._record(DrainDecision(instance, on, version, self._run))

    def latest(self, instance: str) -> DrainDecision:
        """Return the latest decision for an instance. Raises KeyError if there is none."""
        return self._latest[instance]

    def accept(self, decided: DrainDecision) -> bool:
        """Record a decision made at another process if it takes precedence over the latest one known here. Return
        whether it does.
        """
        latest = self._latest.get(decided.instance)
        if latest is not None and (latest.version, latest.by) >= (decided.version, decided.by):
            return False
        self._record(decided)
        return True

    def drains(self, instance: str) -> bool:
        """Return whether the latest decision drains the instance."""
        latest = self._latest.get(instance)
        return latest is not None and latest.on

    def __iter__(self) -> Iterator[DrainDecision]:
        return iter(self._latest.values())

    def _record(self, decided: DrainDecision) -> None:
        self._latest.pop(decided.instance, None)
        self._latest[decided.instance] = decided
        if len(self._latest) > MOST_DECISIONS:
            del self._latest[next(iter(self._latest))]
        self.on_change()
