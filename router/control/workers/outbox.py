"""What one worker has to tell another, gathered until it is sent: loads by target, everything else in order.

A target that is booked and released ten times meanwhile is told of once, as it is when the outbox is taken.
"""

from __future__ import annotations

from collections.abc import Callable

from router.control.workers.messages import LoadMessage, Message
from router.fleet.load import WorkerShare
from router.kvcache.events import TargetId


class Outbox:
    """`share_of` says what is to be told of a target; `wake` is called when there is something after there was not."""

    def __init__(self, share_of: Callable[[TargetId], WorkerShare], wake: Callable[[], None]) -> None:
        self._share_of = share_of
        self._wake = wake
        self._booked: set[TargetId] = set()
        self._messages: list[Message] = []
        self._awake = False

    def booked(self, target: TargetId) -> None:
        self._booked.add(target)
        if not self._awake:
            self._awake = True
            self._wake()

    def tell(self, message: Message) -> None:
        self._messages.append(message)
        if not self._awake:
            self._awake = True
            self._wake()

    def take(self) -> list[Message]:
        loads: list[Message] = [LoadMessage(target, self._share_of(target)) for target in self._booked]
        messages, self._messages = loads + self._messages, []
        self._booked.clear()
        self._awake = False
        return messages
