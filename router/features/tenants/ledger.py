"""The ledger of tenants with limits: the limits, the reservations for requests, and the use.

    open       when a request arrives: count it, or return the limit that is used up
    reserve    when its prompt is known: charge its estimate, or return the limit that it would exceed
    correct    when its prompt is computed: subtract the part that was probably cached
    follow     while its answer runs: charge what exceeds the estimate
    settle     when it has ended, in whatever way: replace the estimate by the real use, once

If an estimate was too high, the excess is subtracted from the 60 s in which the estimate was charged; if it was too
low, the rest is charged when it is known. A day's budget is used by requests that ended on that day and by present
reservations; a request that runs over midnight counts for the day on which it ends.

The ledger is exact for the requests of one process. The use at other processes is known when they report it
(`account.py`), so several processes together may exceed a limit by what they have not reported yet. Apart from the
clock the module is pure; use it from one thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Literal, NamedTuple

from router.clock import Clock
from router.config.sections.clients import PricesConfig, TenantLimits
from router.features.tenants.account import Account
from router.features.tenants.tenant_totals import TenantTotals
from router.features.tenants.token_counts import NO_TOKENS, TokenCounts
from router.features.tenants.token_sums import Prices
from router.features.tenants.window import Slice, SlidingWindow, count_charged, find_room_s

LimitName = Literal["requests_per_minute", "tokens_per_minute", "concurrent", "budget_per_day"]

DAY_S = 86_400
CONCURRENT_RETRY_S = 1.0  # a guess: the end of a running request cannot be predicted
UNCHARGED_TOKENS = 64  # at most, of a running answer, which is not charged token by token
LEAST = TokenCounts(1)  # estimate for a request whose prompt is not known yet
FIRST_SWEEP = 1_024  # so many accounts cause the first sweep, which drops those in which nothing counts any more


class Refusal(NamedTuple):
    """Refusal of a request that needs `wanted` of a `limit` of which the tenant has `used` so much of `allowed`.
    `retry_after_s` is None if the request can never fit.
    """

    limit: LimitName
    allowed: float
    used: float
    wanted: float
    retry_after_s: float | None


class WindowState:
    """State of a limit per minute: the allowed number, the remaining number, and the seconds until all of the limit
    is available again.
    """

    __slots__ = ("allowed", "remaining", "reset_s")

    def __init__(self, allowed: int, remaining: int, reset_s: float) -> None:
        self.allowed = allowed
        self.remaining = remaining
        self.reset_s = reset_s


class LimitState:
    """The present state of a tenant's limits per minute; None for a limit that the tenant does not have."""

    __slots__ = ("requests", "tokens")

    def __init__(self, requests: WindowState | None, tokens: WindowState | None) -> None:
        self.requests = requests
        self.tokens = tokens


class LimitUse(NamedTuple):
    """A limit, and its present use by all processes that report theirs."""

    allowed: float
    used: float


class Ledger:
    """The accounts of all tenants that have limits. `owner` is the name under which other processes book the
    spending of this one.
    """

    def __init__(self, prices: PricesConfig, clock: Clock, owner: str) -> None:
        self.owner = owner
        self._prices = Prices(prices)
        self._clock = clock
        self._accounts: dict[str, Account] = {}
        self._begun = 0
        self._sweep_at = FIRST_SWEEP
        self._changed: set[str] = set()

    def __len__(self) -> int:
        return len(self._accounts)

    def open(self, tenant: str, limits: TenantLimits, *, least: TokenCounts = LEAST) -> Reservation | Refusal:
        """Count a request that needs at least `least`; or return why it may not begin, with nothing counted."""
        account, now = self._open(tenant), self._clock.now()
        account.follow(limits)
        refusal = _find_too_many(account, now) or self._find_shortage(account, least, now)
        if refusal is not None:
            return refusal
        if account.requests_per_minute is not None:
            account.requests.charge(1, now)
            account.requests_charged += 1
        account.open += 1
        self._changed.add(tenant)
        left = _look(account.requests_per_minute, account.request_windows(), now)
        return Reservation(self, tenant, account, left)

    def _find_shortage(self, account: Account, estimate: TokenCounts, now: float) -> Refusal | None:
        """Return the refusal by a limit on tokens that has no room for `estimate`; None if all have."""
        computed = estimate.computed
        if (allowed := account.tokens_per_minute) is not None:
            used = count_charged(account.token_windows(), now)
            if used + computed > allowed:
                excess = used + computed - allowed
                room_s = find_room_s(account.token_windows(), excess, now) if computed <= allowed else None
                return Refusal("tokens_per_minute", allowed, used, computed, room_s)
        if (budget := account.budget_per_day) is not None:
            spent, price = account.cost_today(self._prices), self._prices.cost(estimate)
            if spent + price > budget:
                rest_s = DAY_S - self._clock.wall() % DAY_S
                return Refusal("budget_per_day", budget, spent, price, rest_s if price <= budget else None)
        return None

    def state(self, tenant: str, limits: TenantLimits) -> LimitState:
        """Return how much a tenant has left of its limits per minute."""
        account, now = self._open(tenant), self._clock.now()
        return LimitState(
            _look(limits.requests_per_minute, account.request_windows(), now),
            _look(limits.tokens_per_minute, account.token_windows(), now),
        )

    def last_limits(self, tenant: str) -> TenantLimits | None:
        """Return the limits of a tenant's last request at this process; None if there was none."""
        return self._open(tenant).limits

    def use(self, tenant: str, limits: TenantLimits) -> dict[LimitName, LimitUse]:
        """Return a tenant's present use of each of its limits."""
        account, now = self._open(tenant), self._clock.now()
        used: dict[LimitName, float] = {
            "requests_per_minute": count_charged(account.request_windows(), now),
            "tokens_per_minute": count_charged(account.token_windows(), now),
            "concurrent": account.all_open(),
            "budget_per_day": account.cost_today(self._prices),
        }
        return {
            name: LimitUse(allowed, amount)
            for name, amount in used.items()
            if (allowed := getattr(limits, name)) is not None
        }

    def used_today(self, tenant: str) -> float:
        """Return a tenant's spending and reservations today, in the unit of the prices."""
        return self._open(tenant).cost_today(self._prices)

    def in_progress(self, tenant: str) -> int:
        """Return a tenant's requests in progress."""
        return self._open(tenant).all_open()

    def restore(self, tenant: str, spent: TokenCounts) -> None:
        """Count what a tenant has spent today according to a file, or to a process that hands its spending over."""
        self._open(tenant).spent.add(spent)
        self._changed.add(tenant)

    def _reserve(self, reservation: Reservation, estimate: TokenCounts) -> Refusal | None:
        account, now = reservation.account, self._clock.now()
        if (refusal := self._find_shortage(account, estimate, now)) is not None:
            return refusal
        account.reserved.add(estimate)
        reservation.estimate, reservation.if_left = estimate, NO_TOKENS
        if account.tokens_per_minute is not None:
            reservation.charge(estimate.computed, now)
        self._changed.add(reservation.tenant)
        return None

    def _settle(self, reservation: Reservation, actual: TokenCounts) -> None:
        account, estimate = reservation.account, reservation.estimate
        account.turn_to(self.today())
        account.open -= 1
        account.reserved.subtract(estimate)
        account.spent.add(actual)
        self._charge_difference(reservation, actual.computed - estimate.computed)
        self._changed.add(reservation.tenant)

    def _correct(self, reservation: Reservation, estimate: TokenCounts) -> None:
        """Replace the last estimate by `estimate`."""
        reserved = reservation.account.reserved
        reserved.subtract(reservation.estimate)
        reserved.add(estimate)
        self._charge_difference(reservation, estimate.computed - reservation.estimate.computed)
        reservation.estimate = estimate
        self._changed.add(reservation.tenant)

    def _charge_difference(self, reservation: Reservation, difference: int) -> None:
        """Correct a request's charge to the tokens per minute by `difference`."""
        account, now = reservation.account, self._clock.now()
        if difference > 0 and account.tokens_per_minute is not None:
            account.tokens.charge(difference, now)
            account.tokens_charged += difference
        elif difference < 0:
            reservation.give_back(-difference, now)

    def today(self) -> int:
        """Return the days since the epoch, UTC."""
        return int(self._clock.wall() // DAY_S)

    # several processes

    def apply_report(self, source: str, tenant: str, totals: TenantTotals) -> None:
        """Apply the report of the process `source`."""
        account = self._open(tenant)
        account.apply_report(source, totals, self._clock.now())
        account.spending.pop(self.owner, None)  # of this file's previous holder: in this process's own books

    def forget(self, source: str) -> None:
        """End the open requests of a process that is gone or silent. What it charged and spent remains."""
        for account in self._accounts.values():
            if (reported := account.reported.get(source)) is not None:
                reported.forget_open()

    def hand_over(self, tenant: str, spent: TokenCounts) -> None:
        """Subtract `spent` from a tenant's spending here today: the process that writes the file now reports it."""
        if (account := self._accounts.get(tenant)) is not None:
            account.spent.subtract(spent)
            self._changed.add(tenant)

    def adopt(self, owner: str, spent: Mapping[str, TokenCounts]) -> None:
        """Continue the file of `owner`, in which tenants have `spent` so much today. From now on this process
        reports that spending, too, in place of the process that reported it before.
        """
        self.owner = owner
        self._changed.update(self._accounts)
        for account in self._accounts.values():
            account.spending.pop(owner, None)
        for tenant, tokens in spent.items():
            self.restore(tenant, tokens)

    def totals(self, tenant: str) -> TenantTotals:
        """Return the totals of a tenant, as this process reports them."""
        return self._open(tenant).totals(self.owner, self._clock.now())

    def tenants(self) -> list[str]:
        """Return the tenants with an account."""
        return list(self._accounts)

    def take_changed(self) -> set[str]:
        """Return the tenants whose charges at this process have changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def _open(self, tenant: str) -> Account:
        """Return the account of a tenant, creating it if there is none."""
        day = self.today()
        if (account := self._accounts.get(tenant)) is not None:
            account.turn_to(day)
            return account
        if len(self._accounts) >= self._sweep_at:
            now = self._clock.now()
            self._accounts = {name: one for name, one in self._accounts.items() if not one.is_idle(day, now)}
            self._sweep_at = max(FIRST_SWEEP, 2 * len(self._accounts))
        self._begun += 1
        account = self._accounts[tenant] = Account(self._begun, day)
        return account


def _find_too_many(account: Account, now: float) -> Refusal | None:
    """Return the refusal by a limit on requests that is used up; None if there is none."""
    if (allowed := account.concurrent) is not None and (used := account.all_open()) >= allowed:
        return Refusal("concurrent", allowed, used, 1, CONCURRENT_RETRY_S)
    if (allowed := account.requests_per_minute) is not None:
        used = count_charged(account.request_windows(), now)
        if used >= allowed:
            room_s = find_room_s(account.request_windows(), used + 1 - allowed, now)
            return Refusal("requests_per_minute", allowed, used, 1, room_s)
    return None


def _look(allowed: int | None, windows: list[SlidingWindow], now: float) -> WindowState | None:
    """Return the state of a limit per minute; None if there is no limit."""
    if allowed is None:
        return None
    reset_s = 0.0
    for window in windows:
        reset_s = max(reset_s, window.empty_s(now))
    return WindowState(allowed, max(0, allowed - count_charged(windows, now)), reset_s)


class Reservation:
    """The charge of one request. It is settled once, whatever ends the request: as a context manager, and
    idempotent.
    """

    __slots__ = ("_first", "_ledger", "_requests", "_settled", "account", "charged", "estimate", "if_left", "tenant")

    def __init__(self, ledger: Ledger, tenant: str, account: Account, requests: WindowState | None) -> None:
        self._ledger = ledger
        self._requests = requests  # the state just after this request was counted
        self._settled = False
        self._first = 0  # tokens of this request in `charged`
        self.tenant = tenant
        self.account = account
        self.estimate = NO_TOKENS
        self.if_left = NO_TOKENS  # the cost of a request that ends before it reaches an engine
        self.charged: Slice | None = None  # where its estimate was charged; None: no limit on tokens per minute

    def reserve(self, estimate: TokenCounts) -> Refusal | None:
        """Charge what the request will probably use; or return the refusal by a limit without room, with no token
        charged. Call it once, before the other methods.
        """
        return self._ledger._reserve(self, estimate)

    def state(self) -> LimitState:
        """Return how much is left of the tenant's limits per minute: requests as of this request's begin, tokens
        now.
        """
        account = self.account
        tokens = _look(account.tokens_per_minute, account.token_windows(), self._ledger._clock.now())
        return LimitState(self._requests, tokens)

    def correct(self, cached_tokens: int) -> None:
        """Count `cached_tokens` of the prompt as found in a cache from now on, before the request ends."""
        before = self.estimate
        prompt = before.input_tokens + before.cached_tokens
        cached = min(cached_tokens, prompt)
        counts = self.charged is None or not self.charged.left
        if counts and not self._settled and cached > before.cached_tokens:
            self._ledger._correct(self, TokenCounts(prompt - cached, cached, before.output_tokens))

    def follow(self, output_tokens: int) -> None:
        """Charge the running answer's tokens beyond the estimate, at least `UNCHARGED_TOKENS` at a time."""
        before = self.estimate
        if output_tokens >= before.output_tokens + UNCHARGED_TOKENS and not self._settled:
            self._ledger._correct(self, TokenCounts(before.input_tokens, before.cached_tokens, output_tokens))

    def settle(self, actual: TokenCounts) -> None:
        """Replace the estimate by what the request used. A second call does nothing."""
        if not self._settled:
            self._settled = True
            self._ledger._settle(self, actual)

    def charge(self, computed: int, now: float) -> None:
        """Charge the estimate to the tokens per minute."""
        self.charged, self._first = self.account.tokens.charge(computed, now), computed
        self.account.tokens_charged += computed

    def give_back(self, computed: int, now: float) -> None:
        """Subtract tokens from the charged estimate, as far as it has so many left and still counts."""
        amount = min(computed, self._first)
        if self.charged is not None and self.account.tokens.correct(self.charged, -amount, now):
            self._first -= amount
            self.account.returned_tokens += amount

    def __enter__(self) -> Reservation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Settle a request that was not settled: it has reached no engine."""
        self.settle(self.if_left)
