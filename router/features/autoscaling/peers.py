"""Requests that wait for a model at one process count at all processes, because KEDA may poll any host.

The worker on duty also starts instances for all workers of its host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from router.control.duty import Duty
from router.control.peers.parts import Message, Peers
from router.features.autoscaling.waiting_models import WaitingModels
from router.tasks import Tasks


class InstanceWanted(Message, frozen=True):
    """Requests wait at the sender for a model that no instance serves; sent again while they wait."""

    model: str
    waiting: int


class WakeCallEnded(Message, frozen=True):
    """A call of the sender to start an instance with `model` has ended."""

    model: str
    failed: bool


class SharedWaits:
    """Publishes the models that `waiting` reports at this process, and records those of other processes in it.
    `call` starts an instance for so many requests; `on_call_end` is called with the result of such a call at
    another worker.
    """

    messages: ClassVar[Sequence[type[Message]]] = (InstanceWanted, WakeCallEnded)

    def __init__(self, waiting: WaitingModels, duty: Duty, peers: Peers) -> None:
        self.call: Callable[[str, int], None] = lambda model, waiting: None
        self.on_call_end: Callable[[str, bool], None] = lambda model, failed: None
        self._waiting = waiting
        self._duty = duty
        self._peers = peers
        waiting.share = lambda model, requests: peers.share(InstanceWanted(model, requests))

    def start(self, tasks: Tasks) -> None:
        """Do nothing: there are no tasks."""

    def state(self) -> tuple[Message, ...]:
        return ()  # a model for which requests wait is reported again within a second

    def forget(self, run: str) -> None:
        """Do nothing: models are forgotten when they are not reported again."""

    def publish_end(self, model: str, failed: bool) -> None:
        """Publish to the workers of this host how a call to start an instance ended."""
        self._peers.share_near(WakeCallEnded(model, failed))

    def apply(self, message: Any, run: str) -> None:
        match message:
            case InstanceWanted(model, waiting):
                self._waiting.note(model)
                if self._duty.held and run in self._peers.near_runs():
                    self.call(model, waiting)
            case WakeCallEnded(model, failed):
                self.on_call_end(model, failed)
