"""Requests that wait for a model at any router count at all of them: KEDA asks one, and not always the same."""

from __future__ import annotations

from collections.abc import Callable

from router.control.workers.messages import InstanceWanted, Message
from router.request.wake.waiting_models import WaitingModels
from router.tasks import Tasks


class SharedWaits:
    """Lets `waiting` tell other routers with `share`, and hear them."""

    def __init__(self, waiting: WaitingModels, share: Callable[[Message], None]) -> None:
        self._waiting = waiting
        waiting.share = lambda model, requests: share(InstanceWanted(model, requests))

    def start(self, tasks: Tasks) -> None:
        pass

    def state(self) -> tuple[Message, ...]:
        return ()  # asks come again within a second

    def report(self, message: Message) -> None:
        pass  # the leader reports them itself

    def apply(self, message: Message, run: str) -> None:
        if isinstance(message, InstanceWanted):
            self._waiting.note(message.model)
