"""The account of one tenant: the charges of this process, and the charges that its peers report.

Processes report totals that only rise since the account began, and present values in full (open requests, reserved
tokens, today's spending), so the next message makes up for a lost one. The receiver charges the difference, at the
time of receipt, to its own window for the reporting process, which then holds no more than the window of that process
itself. So once received, a charge counts at the receiver a little longer than at its sender, never shorter. The
module is pure.
"""

from __future__ import annotations

from router.config.sections.clients import TenantLimits
from router.features.tenants.tenant_totals import TenantTotals
from router.features.tenants.token_counts import NO_TOKENS, TokenCounts
from router.features.tenants.token_sums import Prices, TokenSums
from router.features.tenants.window import SlidingWindow, count_charged


class ReportedAccount:
    """The account of the same tenant at another process."""

    __slots__ = ("last", "open", "requests", "reserved", "silent", "tokens")

    def __init__(self) -> None:
        self.last: TenantTotals | None = None
        self.requests = SlidingWindow()
        self.tokens = SlidingWindow()
        self.open = 0
        self.reserved = NO_TOKENS
        self.silent = False  # it is gone, or has reported nothing for long

    def apply(self, totals: TenantTotals, now: float) -> None:
        """Charge the difference from the last report, and keep at most what the other process's window contains."""
        last, self.last, self.silent = self.last, totals, False
        requests, tokens = totals.window_requests, totals.window_tokens
        if last is not None and last.began == totals.began:
            requests, tokens = totals.requests - last.requests, totals.tokens - last.tokens
        _charge(self.requests, requests, totals.window_requests, now)
        _charge(self.tokens, tokens, totals.window_tokens, now)
        self.open, self.reserved = totals.open, totals.reserved

    def forget_open(self) -> None:
        """Drop the open requests of the other process, which is gone or silent; its charges remain."""
        self.open, self.reserved, self.silent = 0, NO_TOKENS, True


def _charge(window: SlidingWindow, amount: int, most: int, now: float) -> None:
    """Charge `amount`, then drop the oldest charges above `most`: they have left the other process's window, or were
    corrected there.
    """
    if amount > 0:
        window.charge(amount, now)
    if (excess := window.advance(now) - most) > 0:
        window.give_back(excess, now)


class Account:
    """One tenant's account. `number` is unique among the accounts of this process."""

    __slots__ = (
        *("budget_per_day", "concurrent", "day", "limits", "number", "open", "reported", "requests"),
        *("requests_charged", "requests_per_minute", "reserved", "returned_tokens", "spending", "spent", "tokens"),
        *("tokens_charged", "tokens_per_minute"),
    )

    def __init__(self, number: int, day: int) -> None:
        self.number = number
        self.day = day
        self.limits: TenantLimits | None = None  # of the last request here; None: there was none
        self.requests_per_minute: int | None = None  # these four are copied from `limits`, which is slow to read
        self.tokens_per_minute: int | None = None
        self.concurrent: int | None = None
        self.budget_per_day: float | None = None
        self.requests = SlidingWindow()
        self.tokens = SlidingWindow()
        self.requests_charged = 0
        self.tokens_charged = 0
        self.returned_tokens = 0
        self.open = 0
        self.spent = TokenSums()  # today, by requests that ended here
        self.reserved = TokenSums()  # for requests that are open here
        self.reported: dict[str, ReportedAccount] = {}  # by source
        self.spending: dict[str, TokenCounts] = {}  # of other processes, today, by owner

    def follow(self, limits: TenantLimits) -> None:
        """Adopt the limits of a request."""
        if limits is not self.limits:
            self.limits = limits
            self.requests_per_minute = limits.requests_per_minute
            self.tokens_per_minute = limits.tokens_per_minute
            self.concurrent = limits.concurrent
            self.budget_per_day = limits.budget_per_day

    def turn_to(self, day: int) -> None:
        """Begin the books of `day`, if it is a new day."""
        if day > self.day:
            self.day = day
            self.spent = TokenSums()
            self.spending.clear()

    def apply_report(self, source: str, totals: TenantTotals, now: float) -> None:
        """Apply the report of another process."""
        if (reported := self.reported.get(source)) is None:
            reported = self.reported[source] = ReportedAccount()
        if reported.last is not None and reported.last.owner != totals.owner:
            # the process has adopted another owner's file, which contains this spending, too
            self.spending.pop(reported.last.owner, None)
        reported.apply(totals, now)
        self.turn_to(totals.day)
        if totals.day == self.day:
            self.spending[totals.owner] = totals.spent

    def request_windows(self) -> list[SlidingWindow]:
        """Return the request windows of all processes."""
        own = [self.requests]
        return own + [reported.requests for reported in self.reported.values()] if self.reported else own

    def token_windows(self) -> list[SlidingWindow]:
        """Return the token windows of all processes."""
        own = [self.tokens]
        return own + [reported.tokens for reported in self.reported.values()] if self.reported else own

    def all_open(self) -> int:
        """Return the requests in progress at all processes."""
        found = self.open
        for reported in self.reported.values():
            found += reported.open
        return found

    def cost_today(self, prices: Prices) -> float:
        """Return the price of today's spending and of the present reservations at all processes."""
        cost = prices.cost(self.spent) + prices.cost(self.reserved)
        for spending in self.spending.values():
            cost += prices.cost(spending)
        for reported in self.reported.values():
            cost += prices.cost(reported.reserved)
        return cost

    def is_idle(self, day: int, now: float) -> bool:
        """Return whether nothing in the account counts any more."""
        self.turn_to(day)
        if self.all_open() or self.spent.read() != NO_TOKENS or self.spending:
            return False
        return not count_charged(self.request_windows(), now) and not count_charged(self.token_windows(), now)

    def totals(self, owner: str, now: float) -> TenantTotals:
        """Return the totals that this process reports."""
        # nothing of a silent process counts once its windows are empty
        for source, reported in list(self.reported.items()):
            if reported.silent and not reported.requests.advance(now) and not reported.tokens.advance(now):
                del self.reported[source]
        charged = self.requests_charged, self.tokens_charged, self.returned_tokens
        windows = self.requests.advance(now), self.tokens.advance(now)
        return TenantTotals(
            owner, self.number, self.day, *charged, *windows, self.open, self.spent.read(), self.reserved.read()
        )
