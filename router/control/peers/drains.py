"""Operators' drains of instances, agreed between peers without a common clock: a version per instance (Lamport).

A decision gets a version above all versions seen for its instance, so that it takes precedence over all decisions
before it. Of two decisions made at once, at two peers that could not reach each other, all peers choose one.
"""

from __future__ import annotations

from collections.abc import Iterator

from router.control.peers.messages import DrainMessage


class DrainDecisions:
    """The latest decision for each instance. `run` is the id of this process's run."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._latest: dict[str, DrainMessage] = {}

    def decide(self, instance: str, on: bool) -> DrainMessage:
        """Record and return a decision made at this process."""
        latest = self._latest.get(instance)
        version = 1 if latest is None else latest.version + 1
        decided = self._latest[instance] = DrainMessage(instance, on, version, self._run)
        return decided

    def accept(self, message: DrainMessage) -> bool:
        """Record a decision made at another process if it takes precedence over the latest one known here. Return
        whether it does.
        """
        latest = self._latest.get(message.instance)
        if latest is not None and (latest.version, latest.by) >= (message.version, message.by):
            return False
        self._latest[message.instance] = message
        return True

    def drains(self, instance: str) -> bool:
        """Return whether the latest decision drains the instance."""
        latest = self._latest.get(instance)
        return latest is not None and latest.on

    def __iter__(self) -> Iterator[DrainMessage]:
        return iter(self._latest.values())
