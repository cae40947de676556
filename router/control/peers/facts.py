"""Compares the processes in front of one fleet: each publishes its policies, engines and operators' decisions.

A process may end when only some of the others have received its last decision. Those that differ therefore request each
other's state until they agree.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import ClassVar

import msgspec

from router.control.peers.messages import StateWanted
from router.control.peers.parts import Message, Peers
from router.control.summaries import summarize_policies
from router.scheduling.scheduler import Scheduler
from router.tasks import Tasks
from router.telemetry.metrics.snapshot import ReplicaReport

LOOK_S = 1.0
APPLY_TIMEOUT_S = 2.0


class PeerFacts(Message, frozen=True):
    """Digests of what the processes in front of one fleet should have in common."""

    policies: str  # digest of those in force
    instances: str  # digest of their names
    count: int  # of instances
    digests: dict[str, str] = {}  # of the policies in use, by name
    trouble: str | None = None  # why the policies of peers could not be put in force
    decisions: str = ""  # digest of operators' decisions; empty: a version without it


class SharedFacts:
    """Publishes the facts of this process, and keeps those of its peers. `members` returns the runs of the other
    workers of this host; `trouble` returns why the policies of peers could not be put in force, or None if they are
    in force; `decisions` returns the decisions known here about policies, as plain data.
    """

    messages: ClassVar[Sequence[type[Message]]] = (PeerFacts,)

    def __init__(
        self,
        scheduler: Scheduler,
        peers: Peers,
        members: Callable[[], Collection[str]],
        trouble: Callable[[], str | None],
        decisions: Callable[[], object],
    ) -> None:
        self._scheduler = scheduler
        self._peers = peers
        self._members = members
        self._trouble = trouble
        self._decisions = decisions
        self._differing: set[str] = set()  # runs that knew other decisions at the last look
        self._sent: PeerFacts | None = None
        self._others: dict[str, PeerFacts] = {}  # by run
        self._changed = asyncio.Event()  # of peers

    def start(self, tasks: Tasks) -> None:
        tasks.supervise("facts for peers", self._follow)

    def state(self) -> Iterator[Message]:
        yield self.own()

    def apply(self, message: PeerFacts, run: str) -> None:
        self._others[run] = message
        self._changed.set()

    def forget(self, run: str) -> None:
        self._others.pop(run, None)
        self._changed.set()

    def find(self, run: str) -> PeerFacts | None:
        """Return the facts of this process, or of a peer; None if they are unknown."""
        return self.own() if run == self._peers.run else self._others.get(run)

    def compare(self, report: ReplicaReport) -> ReplicaReport:
        """Return the report, extended by whether its router agrees with this one if both reach each other."""
        facts = None if report.run is None or not report.up else self._others.get(report.run)
        if facts is None:
            return report
        own = self.own()
        return report._replace(
            same_policies=facts.policies == own.policies,
            same_instances=facts.instances == own.instances,
            instances=facts.count,
        )

    def publish(self) -> None:
        """Publish the facts if they have changed."""
        if (own := self.own()) != self._sent:
            self._sent = own
            self._peers.share(own)

    async def wait_until_applied(self) -> None:
        """Return when every worker of this host has the policies of this one in force, or after 2 s at most."""
        own = self.own().policies
        with suppress(TimeoutError):
            async with asyncio.timeout(APPLY_TIMEOUT_S):
                while any((facts := self._others.get(run)) is None or facts.policies != own for run in self._members()):
                    self._changed.clear()
                    await self._changed.wait()

    async def _follow(self) -> None:
        """Publish the facts when they have changed, and settle differences, until cancelled."""
        while True:
            self.publish()
            self._settle_differences(self._sent or self.own())
            await asyncio.sleep(LOOK_S)

    def _settle_differences(self, own: PeerFacts) -> None:
        """Request the state of peers that knew other decisions than `own` at this look and the one before."""
        differing = {
            run
            for run, facts in self._others.items()
            if facts.decisions not in ("", own.decisions) and facts.instances == own.instances
        }
        for run in sorted(differing & self._differing):
            self._peers.send_to(run, StateWanted())
        self._differing = differing

    def own(self) -> PeerFacts:
        """Return the facts of this process."""
        policy_set = self._scheduler.selector.policy_set
        policies = msgspec.json.encode(summarize_policies(policy_set))
        names = sorted(instance.id for instance in self._scheduler.fleet)
        drained = sorted(instance.id for instance in self._scheduler.fleet if instance.drained)
        decisions = msgspec.json.encode([drained, self._decisions()])
        digests = _digest([policies]), _digest(name.encode() for name in names)
        return PeerFacts(*digests, len(names), dict(policy_set.digests), self._trouble(), _digest([decisions]))


def _digest(parts: Iterable[bytes]) -> str:
    return blake2b(b"\0".join(parts), digest_size=8).hexdigest()
