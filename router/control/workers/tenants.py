"""The limits and the usage of tenants, shared by the workers of a router and with other routers.

    follower -> leader    what the worker charged, at most every `SHARE_S`; what its tenants used, every `USAGE_S`
    leader -> follower    what all others charged: the leader, the other workers, other routers
    leader -> replicas    what all workers of this router charged

Each worker decides by itself, with what the others have told, so a limit may be exceeded by what they have not told
yet. What a killed worker had not told of usage is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from router.control.workers.channel import Channel
from router.control.workers.messages import Message, TenantReport, UsageReport
from router.tenants.ledger import Ledger
from router.tenants.usage_book import UsageBook

SHARE_S = 0.05
USAGE_S = 1.0
LEADER = "leader"
FOLLOWER = "worker "  # and its number, and how many had it before: another router's name is the id of its run


class FollowerTenants:
    """A follower's part. `send` sends to the leader."""

    def __init__(self, ledger: Ledger, usage: UsageBook, send: Callable[[Message], None]) -> None:
        self._ledger = ledger
        self._usage = usage
        self._send = send

    def tell(self) -> None:
        """Send what this worker has charged since the last call."""
        for tenant in {tenant for tenant, source in self._ledger.take_changed() if source is None}:
            self._send(TenantReport(tenant, self._ledger.totals(tenant, without=LEADER)))

    def tell_usage(self) -> None:
        """Send what tenants used since the last call."""
        if rows := self._usage.take():
            self._send(UsageReport(rows))

    def apply(self, report: TenantReport) -> None:
        """Take over what all others charged."""
        self._ledger.hear(LEADER, report.tenant, report.totals, near=True)


class LeaderTenants:
    """The leader's part. `channels` returns those of the followers by number; `share` sends to other routers, None:
    there are none.
    """

    def __init__(self, ledger: Ledger, usage: UsageBook, channels: Callable[[], Iterator[tuple[int, Channel]]]) -> None:
        self.share: Callable[[Message], None] | None = None
        self._ledger = ledger
        self._usage = usage
        self._channels = channels
        self._gone: dict[int, int] = {}  # followers that are gone, by number

    def tell(self) -> None:
        """Send to everybody what others have charged since the last call."""
        changed = self._ledger.take_changed()
        if not changed:
            return
        for number, channel in self._channels():
            own = self._name(number)
            for tenant in {tenant for tenant, source in changed if source != own}:
                channel.send(self._report_to(own, tenant))
        if self.share is not None:
            for tenant in {tenant for tenant, source in changed if source is None or source.startswith(FOLLOWER)}:
                self.share(self.report_to_replicas(tenant))

    def report_all(self, number: int) -> Iterator[Message]:
        """Return what a follower has to know that starts."""
        for tenant in self._ledger.tenants():
            yield self._report_to(self._name(number), tenant)

    def state(self) -> Iterator[Message]:
        """Return what another router has to know that starts, or has missed something."""
        return map(self.report_to_replicas, self._ledger.tenants())

    def apply(self, number: int, message: TenantReport | UsageReport) -> None:
        """Take over what a follower tells."""
        if isinstance(message, TenantReport):
            self._ledger.hear(self._name(number), message.tenant, message.totals, near=True)
            return
        for row in message.rows:
            self._usage.add(row)

    def drop_worker(self, number: int) -> None:
        """End the requests of a follower that is gone. The next one of this number has to know what it charged."""
        self._ledger.forget(self._name(number))
        self._gone[number] = self._gone.get(number, 0) + 1

    def apply_from_replica(self, run: str, report: TenantReport) -> None:
        """Take over what another router tells."""
        self._ledger.hear(run, report.tenant, report.totals, near=False)

    def forget_replica(self, run: str) -> None:
        """End the requests of another router that is gone or silent."""
        self._ledger.forget(run)

    def report_to_replicas(self, tenant: str) -> TenantReport:
        """Return what all workers of this router charged a tenant."""
        return TenantReport(tenant, self._ledger.totals(tenant, near_only=True))

    def _report_to(self, follower: str, tenant: str) -> TenantReport:
        return TenantReport(tenant, self._ledger.totals(tenant, without=follower))

    def _name(self, number: int) -> str:
        """Return the name of a follower in the ledger."""
        return f"{FOLLOWER}{number}.{self._gone.get(number, 0)}"
