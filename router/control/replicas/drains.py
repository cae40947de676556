"""Which instances operators drain, agreed between replicas without a common clock: a version per instance (Lamport).

A decision gets a version above all that were seen for its instance, so that it counts over what it was made after; of
two that were made at once, at two replicas that could not hear each other, all replicas choose the same one.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from router.control.workers.messages import DrainMessage


class DrainDecisions:
    """The latest decision for each instance. `run` is the id of this router's run."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._latest: dict[str, DrainMessage] = {}

    def decide(self, message: DrainMessage) -> DrainMessage:
        """Return a decision made here with its version."""
        latest = self._latest.get(message.instance)
        version = 1 if latest is None else latest.version + 1
        decided = self._latest[message.instance] = msgspec.structs.replace(message, version=version, by=self._run)
        return decided

    def accept(self, message: DrainMessage) -> bool:
        """Note a decision made elsewhere. Return whether it counts over the latest one that is known here."""
        latest = self._latest.get(message.instance)
        if latest is not None and (latest.version, latest.by) >= (message.version, message.by):
            return False
        self._latest[message.instance] = message
        return True

    def __iter__(self) -> Iterator[DrainMessage]:
        return iter(self._latest.values())
