"""The lists of instances that the worker on duty reads from a file, DNS or the Kubernetes API, for all workers of
its host: a source is watched once, however many workers there are.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import ClassVar, NamedTuple

from router.backends.discovery.discovery import DiscoveredInstance
from router.config.schema import InstanceConfig
from router.control.duty import Duty
from router.control.peers.parts import Message, Peers
from router.tasks import Tasks


class ListedInstance(NamedTuple):
    """A `DiscoveredInstance`, with its configuration as JSON."""

    config: str
    origin: str
    uid: str | None
    accepting: bool
    lags: bool


class InstancesListed(Message, frozen=True):
    """The whole list of a source."""

    source: str
    instances: list[ListedInstance]


class SharedInstances:
    """Publishes the lists of this process when it is on `duty`; otherwise lets `update` apply the lists of the
    worker on duty.
    """

    messages: ClassVar[Sequence[type[Message]]] = (InstancesListed,)

    def __init__(
        self,
        update: Callable[[str, list[DiscoveredInstance]], Awaitable[None]],
        duty: Duty,
        peers: Peers,
        tasks: Tasks,
    ) -> None:
        self._update = update
        self._duty = duty
        self._peers = peers
        self._tasks = tasks
        self._published: dict[str, InstancesListed] = {}  # by source

    def publish(self, source: str, instances: Sequence[DiscoveredInstance]) -> None:
        """Publish a list of this process to the workers of its host."""
        listed = [ListedInstance(one.config.model_dump_json(), *one[1:]) for one in instances]
        message = self._published[source] = InstancesListed(source, listed)
        self._peers.share_near(message)

    def start(self, tasks: Tasks) -> None:
        """Do nothing: the only tasks are those that apply lists."""

    def state(self) -> Iterator[Message]:
        return iter(self._published.values())

    def forget(self, run: str) -> None:
        """Do nothing: a list stays in force until another worker has read its source."""

    def apply(self, message: InstancesListed, run: str) -> None:
        if self._is_of_duty(run):
            found = [
                DiscoveredInstance(InstanceConfig.model_validate_json(one.config), *one[1:])
                for one in message.instances
            ]
            self._tasks.spawn("instances", self._apply(message.source, found))

    def _is_of_duty(self, run: str) -> bool:
        """Return whether this process applies the lists of a peer: of the worker on duty, or of a worker of this
        host, which may have just taken the duties before this process is notified.
        """
        return not self._duty.held and (run == self._duty.holder or run in self._peers.near_runs())

    async def _apply(self, source: str, found: list[DiscoveredInstance]) -> None:
        await self._update(source, found)
