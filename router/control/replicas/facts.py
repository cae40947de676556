"""Whether the routers in front of one fleet agree: each says which policies and engines it has, when that changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b

import msgspec

from router.control.replicas.policy_messages import RouterFacts
from router.control.summaries import summarize_policies
from router.control.workers.messages import Message
from router.scheduling.scheduler import Scheduler
from router.tasks import Tasks
from router.telemetry.metrics.snapshot import ReplicaReport

LOOK_S = 1.0


class SharedFacts:
    """Sends facts of the router of `scheduler`, and keeps those of the others."""

    def __init__(self, scheduler: Scheduler, send: Callable[[Message], None]) -> None:
        self._scheduler = scheduler
        self._send = send
        self._sent: RouterFacts | None = None
        self._others: dict[str, RouterFacts] = {}  # by run

    def start(self, tasks: Tasks) -> None:
        tasks.supervise("facts for replicas", self._follow)

    def report(self, message: Message) -> None:
        pass  # facts are looked up

    def state(self) -> Iterator[Message]:
        yield self._own()

    def apply(self, message: Message, run: str) -> None:
        if isinstance(message, RouterFacts):
            self._others[run] = message

    def compare(self, report: ReplicaReport) -> ReplicaReport:
        """Return a report with whether that router agrees with this one, where both are heard."""
        facts = None if report.run is None or not report.up else self._others.get(report.run)
        if facts is None:
            return report
        own = self._own()
        return report._replace(
            same_policies=facts.policies == own.policies,
            same_instances=facts.instances == own.instances,
            instances=facts.count,
        )

    async def _follow(self) -> None:
        """Send the facts when they have changed, until cancelled."""
        while True:
            if (own := self._own()) != self._sent:
                self._sent = own
                self._send(own)
            await asyncio.sleep(LOOK_S)

    def _own(self) -> RouterFacts:
        policies = msgspec.json.encode(summarize_policies(self._scheduler.selector.policy_set))
        names = sorted(instance.id for instance in self._scheduler.fleet)
        return RouterFacts(_digest([policies]), _digest(name.encode() for name in names), len(names))


def _digest(parts: Iterable[bytes]) -> str:
    return blake2b(b"\0".join(parts), digest_size=8).hexdigest()
