"""How a worker tells the others what happened, whatever carries it: a socket pair, or ZeroMQ between replicas."""

from __future__ import annotations

from typing import Protocol

from router.control.workers.messages import Message
from router.kvcache.events import TargetId
from router.telemetry.metrics.snapshot import ReplicaReport


class Broadcast(Protocol):
    """The way to the others: from the leader to all followers and replicas, from a follower to its leader."""

    def report_load(self, target: TargetId) -> None:
        """Send this worker's bookings of `target`, which have changed."""

    def send(self, message: Message) -> None: ...

    def flush(self) -> None:
        """Write the gathered messages now: another worker may need them in a moment."""


class Replicas(Broadcast, Protocol):
    """The exchange with other replicas (`control/replicas`), which knows the leader, not the leader it."""

    async def start(self) -> None:
        """Listen for the others, connect to them, and take over what one of them has learned.

        Raises ConfigError when the port is taken.
        """

    async def close(self) -> None: ...

    def describe(self) -> list[ReplicaReport]: ...
