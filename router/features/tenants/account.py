"""The account of one tenant: what this process charged it, and what its peers report that they did.

What processes report are totals that only rise, since the account began, and present values as a whole (open
requests, reserved tokens, what was spent today). So a lost message is made up for by the next one. The receiver
charges the difference to a window of its own for that process, when it receives it: a charge counts there a little
longer than where it was made, never shorter, once it is known. Pure.
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
        """Charge what is new. Of what was missed for long, at most what is in the other's window still counts."""
        last, self.last, self.silent = self.last, totals, False
        if last is None or last.began != totals.began:
            requests, tokens, returned = totals.window_requests, totals.window_tokens, 0
        else:
            requests = min(totals.requests - last.requests, totals.window_requests)
            returned = max(0, totals.returned_tokens - last.returned_tokens)
            tokens = min(totals.tokens - last.tokens, totals.window_tokens + returned)
        if requests > 0:
            self.requests.charge(requests, now)
        if tokens > 0:
            self.tokens.charge(tokens, now)
        if returned > 0:
            self.tokens.give_back(returned, now)
        self.open, self.reserved = totals.open, totals.reserved

    def forget_open(self) -> None:
        """The other process is gone or silent, and with it its open requests; what it charged was used."""
        self.open, self.reserved, self.silent = 0, NO_TOKENS, True


class Account:
    """One tenant's account. `number` is its own among those of this process."""

    __slots__ = (
        *("budget_per_day", "concurrent", "day", "reported", "limits", "number", "open", "requests"),
        *("requests_charged", "requests_per_minute", "reserved", "returned_tokens", "spending", "spent", "tokens"),
        *("tokens_charged", "tokens_per_minute"),
    )

    def __init__(self, number: int, day: int) -> None:
        self.number = number
        self.day = day
        self.limits: TenantLimits | None = None  # of the last request here; None: there was none
        self.requests_per_minute: int | None = None  # these four: of `limits`, which is slow to read
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
        self.reserved = TokenSums()  # for those that are open here
        self.reported: dict[str, ReportedAccount] = {}  # by source
        self.spending: dict[str, TokenCounts] = {}  # of others, today, by owner

    def follow(self, limits: TenantLimits) -> None:
        """Take over the limits of a request."""
        if limits is not self.limits:
            self.limits = limits
            self.requests_per_minute = limits.requests_per_minute
            self.tokens_per_minute = limits.tokens_per_minute
            self.concurrent = limits.concurrent
            self.budget_per_day = limits.budget_per_day

    def turn_to(self, day: int) -> None:
        """Begin the books of another day, if it is one."""
        if day > self.day:
            self.day = day
            self.spent = TokenSums()
            self.spending.clear()

    def hear(self, source: str, totals: TenantTotals, now: float) -> None:
        """Take over what another process reports."""
        if (reported := self.reported.get(source)) is None:
            reported = self.reported[source] = ReportedAccount()
        if reported.last is not None and reported.last.owner != totals.owner:
            self.spending.pop(
                reported.last.owner, None
            )  # it goes on from another's file now, where this is written, too
        reported.apply(totals, now)
        self.turn_to(totals.day)
        if totals.day == self.day:
            self.spending[totals.owner] = totals.spent

    def request_windows(self) -> list[SlidingWindow]:
        """Return the windows of all processes."""
        own = [self.requests]
        return own + [reported.requests for reported in self.reported.values()] if self.reported else own

    def token_windows(self) -> list[SlidingWindow]:
        """Return the windows of all processes."""
        own = [self.tokens]
        return own + [reported.tokens for reported in self.reported.values()] if self.reported else own

    def all_open(self) -> int:
        """Return the requests in progress at all processes."""
        found = self.open
        for reported in self.reported.values():
            found += reported.open
        return found

    def cost_today(self, prices: Prices) -> float:
        """Return the price of what was spent today, and of what is reserved, by all processes."""
        cost = prices.cost(self.spent) + prices.cost(self.reserved)
        for spending in self.spending.values():
            cost += prices.cost(spending)
        for reported in self.reported.values():
            cost += prices.cost(reported.reserved)
        return cost

    def is_idle(self, day: int, now: float) -> bool:
        """Return whether nothing in it counts any more."""
        self.turn_to(day)
        if self.all_open() or self.spent.read() != NO_TOKENS or self.spending:
            return False
        return not count_charged(self.request_windows(), now) and not count_charged(self.token_windows(), now)

    def totals(self, owner: str, now: float) -> TenantTotals:
        """Return the totals that this process reports."""
        for source, reported in list(
            self.reported.items()
        ):  # nothing of a silent one counts once its windows are empty
            if reported.silent and not reported.requests.advance(now) and not reported.tokens.advance(now):
                del self.reported[source]
        charged = self.requests_charged, self.tokens_charged, self.returned_tokens
        windows = self.requests.advance(now), self.tokens.advance(now)
        return TenantTotals(
            owner, self.number, self.day, *charged, *windows, self.open, self.spent.read(), self.reserved.read()
        )
