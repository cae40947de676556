"""The limits and the usage of tenants over several processes.

    charges    each process publishes its charges every `SHARE_S`, and decides by itself with the others' published
               charges: a limit may be exceeded by what they have not published yet
    usage      the workers of a host send their usage to the worker on duty every `USAGE_S`, which writes it to the
               file

A process that has ended or is silent holds no requests any more; its charges and spending remain. While processes
cannot reach each other, each side grants the whole limit. The worker on duty reports usage received from a worker
as its own: for a moment the usage may count twice for a budget, but it always counts. Usage that a killed worker
had not sent is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from router.control.duty import Duty
from router.control.peers.parts import Message, Peers
from router.features.tenants.ledger import Ledger
from router.features.tenants.tenant_totals import TenantTotals
from router.features.tenants.usage import UsageRow
from router.features.tenants.usage_book import UsageBook
from router.tasks import Tasks

SHARE_S = 0.05
USAGE_S = 1.0


class TenantReport(Message, frozen=True):
    """The sender's charges of a tenant; see `TenantTotals`."""

    tenant: str
    totals: TenantTotals


class UsageReport(Message, frozen=True):
    """The tenants' usage at the sender since its last report. The report is sent again until it is acknowledged."""

    number: int  # counts the reports of the sender's run, from 1
    rows: list[UsageRow]


class UsageReceived(Message, frozen=True):
    """Acknowledgement: the receiver's report with this number is in the sender's books."""

    number: int


class SharedTenants:
    """Publishes the charges in `ledger`, and gathers `usage` at the worker on `duty`."""

    messages: ClassVar[Sequence[type[Message]]] = (TenantReport, UsageReport, UsageReceived)

    def __init__(self, ledger: Ledger, usage: UsageBook, duty: Duty, peers: Peers) -> None:
        self._ledger = ledger
        self._usage = usage
        self._duty = duty
        self._peers = peers
        self._reports = 0
        self._unreceived: UsageReport | None = None
        self._received: dict[str, int] = {}  # number of the last report, by run
        self._stopping = False

    def start(self, tasks: Tasks) -> None:
        tasks.supervise("limits of tenants", self._share_always)
        tasks.supervise("usage for the worker on duty", self._send_always)

    def state(self) -> Iterator[Message]:
        return map(self._report, self._ledger.tenants())

    def forget(self, run: str) -> None:
        self._ledger.forget(run)
        self._received.pop(run, None)

    def apply(self, message: Any, run: str) -> None:
        match message:
            case TenantReport(tenant, totals):
                self._ledger.apply_report(run, tenant, totals)
            case UsageReport(number, rows):
                if self._duty.held:
                    if number > self._received.get(run, 0):
                        self._received[run] = number
                        self._take_over(rows)
                    self._peers.send_to(run, UsageReceived(number))
            case UsageReceived(number):
                if self._unreceived is not None and self._unreceived.number == number:
                    self._hand_over(self._unreceived.rows)
                    self._unreceived = None

    def share(self) -> None:
        """Publish the charges of this process that changed since the last call."""
        for tenant in self._ledger.take_changed():
            self._peers.share(self._report(tenant))

    def send_usage(self) -> None:
        """Send the tenants' usage to the worker on duty, unless this process is on duty."""
        if self._duty.held:
            self._take_back()  # the previous worker on duty has ended
            return
        if self._unreceived is None and (rows := self._usage.take()):
            self._reports += 1
            self._unreceived = UsageReport(self._reports, rows)
        if self._unreceived is not None and self._duty.holder is not None:
            self._peers.send_to(self._duty.holder, self._unreceived)

    def reclaim(self) -> None:
        """Put the unacknowledged usage back into the book, and send nothing more, because this process stops."""
        self._stopping = True
        self._take_back()

    def _take_back(self) -> None:
        if self._unreceived is not None:
            for row in self._unreceived.rows:
                self._usage.add(row)
            self._unreceived = None

    def _take_over(self, rows: Sequence[UsageRow]) -> None:
        """Count the usage of another process as this process's own."""
        today = self._ledger.today()
        for row in rows:
            self._usage.add(row)
            if row.day == today:
                self._ledger.restore(row.tenant, row.tokens)

    def _hand_over(self, rows: Sequence[UsageRow]) -> None:
        """Stop counting usage that another process now counts as its own."""
        today = self._ledger.today()
        for row in rows:
            if row.day == today:  # else it no longer counts
                self._ledger.hand_over(row.tenant, row.tokens)

    def _report(self, tenant: str) -> TenantReport:
        return TenantReport(tenant, self._ledger.totals(tenant))

    async def _share_always(self) -> None:
        while True:
            await asyncio.sleep(SHARE_S)
            self.share()

    async def _send_always(self) -> None:
        while True:
            await asyncio.sleep(USAGE_S)
            if not self._stopping:
                self.send_usage()
