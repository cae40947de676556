"""Messages that wait to be sent to peers."""

from __future__ import annotations

from collections.abc import Callable

from router.control.peers.messages import LoadMessage
from router.control.peers.parts import Message
from router.fleet.worker_share import WorkerShare
from router.kvcache.events import TargetId

ShareOf = Callable[[TargetId], WorkerShare]


class Outbox:
    """Messages gathered until they are sent: one load per target, all others in order.

    A target that was booked and released ten times meanwhile gives one message, with its load (`share_of`) at the
    time of `take`. `wake` is called when the outbox stops being empty.
    """

    def __init__(self, share_of: ShareOf, wake: Callable[[], None]) -> None:
        self._share_of = share_of
        self._wake = wake
        self._booked: dict[TargetId, None] = {}  # in the order of their first booking
        self._messages: list[Message] = []
        self._awake = False

    def report_load(self, target: TargetId) -> None:
        self._booked[target] = None
        if not self._awake:
            self._awake = True
            self._wake()

    def send(self, message: Message) -> None:
        self._messages.append(message)
        if not self._awake:
            self._awake = True
            self._wake()

    def take(self) -> list[Message]:
        """Return everything gathered, and empty the outbox."""
        loads: list[Message] = [LoadMessage(target, self._share_of(target)) for target in self._booked]
        messages, self._messages = loads + self._messages, []
        self._booked.clear()
        self._awake = False
        return messages
