"""What several routers find out about engines: breakers that opened or closed, suspicions, weights that changed.

A breaker that opens because an engine failed for several clients is open at all routers; failures of one client count
at another router as they would there, so that a client whose requests make engines fail closes them to nobody. Each
tries it again by itself, and the first good answer closes it everywhere. That an engine could not be reached is only a
reason for the others to probe it now: it may be the network of one router. An instance whose weights changed is named
until this router stops, so that also one that could not be heard meanwhile forgets what it believes of its caches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from router.control.workers.leader import LeaderWorker
from router.control.workers.messages import BreakerMoved, CacheForgotten, InstanceSuspected, Message
from router.control.workers.scheduler import SyncedScheduler
from router.tasks import Tasks


class SharedEngines:
    """Reports with `send` what the workers of `leader` find out, and has them apply what others do. `scheduler` is the
    leader's, `run` the id of this router's run.
    """

    def __init__(
        self, run: str, leader: LeaderWorker, scheduler: SyncedScheduler, send: Callable[[Message], None]
    ) -> None:
        self._run = run
        self._leader = leader
        self._scheduler = scheduler
        self._send = send
        self._forgotten: dict[str, CacheForgotten] = {}  # the last one of this router, by instance
        self._asked = 0
        self._applied: dict[tuple[str, str], int] = {}  # number of the last one, by run and instance

    def start(self, tasks: Tasks) -> None:
        pass  # it has none

    def report(self, message: Message) -> None:
        match message:
            case BreakerMoved() | InstanceSuspected():
                self._send(message)
            case CacheForgotten(instance):
                self._asked += 1
                named = CacheForgotten(instance, self._asked, self._run)
                self._forgotten[instance] = named
                self._send(named)

    def state(self) -> Iterator[Message]:
        yield from self._scheduler.open_breakers()
        yield from self._forgotten.values()

    def apply(self, message: Message, run: str) -> None:
        match message:
            case BreakerMoved() | InstanceSuspected():
                self._leader.apply_from_replica(message)
            case CacheForgotten(instance, number, by):
                if number > self._applied.get((by, instance), 0):
                    self._applied[by, instance] = number
                    self._leader.apply_from_replica(message)
