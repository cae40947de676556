"""The limits and the usage of tenants over several processes.

    charges    each process publishes what it charged, every `SHARE_S`, and decides by itself with what the others have
               published: a limit may be exceeded by what they have not published yet
    usage      the workers of a host send theirs to the one on duty every `USAGE_S`, which writes it to the file

A process that has ended or is silent holds no requests any more; what it charged and spent remains. Where processes
do not reach each other, each side grants the whole limit. What the worker on duty has taken over of a worker's
usage is part of what it reports itself: for a moment it may count twice for a budget, but never not at all. What a
killed worker had not sent is lost.
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
    """The sender charged a tenant so much; see `TenantTotals`."""

    tenant: str
    totals: TenantTotals


class UsageReport(Message, frozen=True):
    """Tenants have used so much at the sender since its last report. It is sent again until it is acknowledged."""

    number: int  # among those of the sender's run, from 1
    rows: list[UsageRow]


class UsageReceived(Message, frozen=True):
    """The report of the receiver with this number is in the books."""

    number: int


class SharedTenants:
    """Shares the charges in `ledger`, and gathers `usage` at the worker on `duty`."""

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
                self._ledger.hear(run, tenant, totals)
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
        """Publish what this process has charged since the last call."""
        for tenant in self._ledger.take_changed():
            self._peers.share(self._report(tenant))

    def send_usage(self) -> None:
        """Send what tenants used to the worker on duty, if that is another one."""
        if self._duty.held:
            self._take_back()  # the one before has ended
            return
        if self._unreceived is None and (rows := self._usage.take()):
            self._reports += 1
            self._unreceived = UsageReport(self._reports, rows)
        if self._unreceived is not None and self._duty.holder is not None:
            self._peers.send_to(self._duty.holder, self._unreceived)

    def reclaim(self) -> None:
        """Put back into the book what has not been acknowledged, and send nothing more: this process stops."""
        self._stopping = True
        self._take_back()

    def _take_back(self) -> None:
        if self._unreceived is not None:
            for row in self._unreceived.rows:
                self._usage.add(row)
            self._unreceived = None

    def _take_over(self, rows: Sequence[UsageRow]) -> None:
        """Count at this process what tenants used at another one."""
        today = self._ledger.today()
        for row in rows:
            self._usage.add(row)
            if row.day == today:
                self._ledger.restore(row.tenant, row.tokens)

    def _hand_over(self, rows: Sequence[UsageRow]) -> None:
        """Leave what tenants used here to the process that counts it now."""
        today = self._ledger.today()
        for row in rows:
            if row.day == today:  # else it counts no more
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
