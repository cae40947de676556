"""What a worker does with its news: `Leader` tells all the others, a `Follower` its leader."""

from __future__ import annotations

from typing import Protocol

from router.control.workers.messages import Message
from router.kvcache.events import TargetId


class Broadcast(Protocol):
    def booked(self, target: TargetId) -> None:
        """Our own bookings there have changed."""

    def tell(self, message: Message) -> None: ...

    def hurry(self) -> None:
        """What was told goes out now: somebody may ask for it in a moment."""
