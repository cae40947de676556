"""The ledger of tenants with limits: what each may use now, what is reserved for its requests, and what they used.

    open       a request has arrived: it is counted, or the limit that is used up is named
    reserve    its prompt is known: its estimate is charged, or the limit that it would exceed is named
    correct    its prompt is computed: what was probably cached of it is taken off
    follow     its answer runs: what exceeds the estimate is charged
    settle     it has ended, in whatever way: what it used takes the place of the estimate, once

What an estimate has too much is taken off the 60 s in which it was made, and what exceeds it is charged when it is
known. The budget of a day has what ended in that day and what is reserved; a request that runs over midnight counts
for the day in which it ends.

Exact for the requests of one process. What others did is known when they report it (`account.py`), so several
together may exceed a limit by what they have not reported yet. Pure but for the clock; one thread.
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
CONCURRENT_RETRY_S = 1.0  # nobody knows when a request ends
UNCHARGED_TOKENS = 64  # at most, of an answer that runs: it is not charged token by token
LEAST = TokenCounts(1)  # of a request whose prompt is not known yet
FIRST_SWEEP = 1_024  # accounts, then those in which nothing counts any more are dropped


class Refusal(NamedTuple):
    """A request would exceed `limit`, of whose `allowed` the tenant has `used` that much and the request needs
    `wanted`. `retry_after_s` None: it never fits.
    """

    limit: LimitName
    allowed: float
    used: float
    wanted: float
    retry_after_s: float | None


class WindowState:
    """State of a limit per minute: the allowed number, the remaining one, and the seconds until all of it is
    available again.
    """

    __slots__ = ("allowed", "remaining", "reset_s")

    def __init__(self, allowed: int, remaining: int, reset_s: float) -> None:
        self.allowed = allowed
        self.remaining = remaining
        self.reset_s = reset_s


class LimitState:
    """The limits per minute of a tenant as they are now; None where it has none."""

    __slots__ = ("requests", "tokens")

    def __init__(self, requests: WindowState | None, tokens: WindowState | None) -> None:
        self.requests = requests
        self.tokens = tokens


class LimitUse(NamedTuple):
    """A limit, and what of it is used now, by all processes that report theirs."""

    allowed: float
    used: float


class Ledger:
    """The accounts of all tenants that have limits. `owner` names who spends here to other processes."""

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
        """Count a request of which nothing is known but that it needs `least`; or return why it may not begin, with
        nothing counted.
        """
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
        """Return which limit on tokens has no room for `estimate`."""
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
        """Return how much of its limits per minute a tenant has left."""
        account, now = self._open(tenant), self._clock.now()
        return LimitState(
            _look(limits.requests_per_minute, account.request_windows(), now),
            _look(limits.tokens_per_minute, account.token_windows(), now),
        )

    def last_limits(self, tenant: str) -> TenantLimits | None:
        """Return the limits of a tenant's last request at this process; None: there was none."""
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
        """Return the spending and reservations of a tenant today, in the unit of the prices."""
        return self._open(tenant).cost_today(self._prices)

    def in_progress(self, tenant: str) -> int:
        """Return a tenant's requests in progress."""
        return self._open(tenant).all_open()

    def restore(self, tenant: str, spent: TokenCounts) -> None:
        """Count what a tenant has spent today elsewhere: as a file has it, or a process that hands it over."""
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
        """Put another estimate in the place of the last one."""
        reserved = reservation.account.reserved
        reserved.subtract(reservation.estimate)
        reserved.add(estimate)
        self._charge_difference(reservation, estimate.computed - reservation.estimate.computed)
        reservation.estimate = estimate
        self._changed.add(reservation.tenant)

    def _charge_difference(self, reservation: Reservation, difference: int) -> None:
        """Correct what a request was charged to the tokens per minute."""
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

    def hear(self, source: str, tenant: str, totals: TenantTotals) -> None:
        """Take over what the process `source` reports."""
        account = self._open(tenant)
        account.hear(source, totals, self._clock.now())
        account.spending.pop(self.owner, None)  # of the one before that has the file: it is in this process's books

    def forget(self, source: str) -> None:
        """End the open requests of a process that is gone or silent. What it charged and spent remains."""
        for account in self._accounts.values():
            if (reported := account.reported.get(source)) is not None:
                reported.forget_open()

    def hand_over(self, tenant: str, spent: TokenCounts) -> None:
        """Leave what a tenant has spent here today to the process that writes it to the file and reports it,
        too.
        """
        if (account := self._accounts.get(tenant)) is not None:
            account.spent.subtract(spent)
            self._changed.add(tenant)

    def adopt(self, owner: str, spent: Mapping[str, TokenCounts]) -> None:
        """Go on from a file that `owner` has written, with what tenants have spent today by it: report that too
        from now on, in the place of the process that did.
        """
        self.owner = owner
        self._changed.update(self._accounts)
        for account in self._accounts.values():
            account.spending.pop(owner, None)
        for tenant, tokens in spent.items():
            self.restore(tenant, tokens)

    def totals(self, tenant: str) -> TenantTotals:
        """Return the totals of a tenant that this process reports."""
        return self._open(tenant).totals(self.owner, self._clock.now())

    def tenants(self) -> list[str]:
        """Return the tenants with an account."""
        return list(self._accounts)

    def take_changed(self) -> set[str]:
        """Return the tenants that this process has charged, or given back, since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def _open(self, tenant: str) -> Account:
        """Return the account of a tenant, which begins if there is none."""
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
    """Return which limit on requests is used up."""
    if (allowed := account.concurrent) is not None and (used := account.all_open()) >= allowed:
        return Refusal("concurrent", allowed, used, 1, CONCURRENT_RETRY_S)
    if (allowed := account.requests_per_minute) is not None:
        used = count_charged(account.request_windows(), now)
        if used >= allowed:
            room_s = find_room_s(account.request_windows(), used + 1 - allowed, now)
            return Refusal("requests_per_minute", allowed, used, 1, room_s)
    return None


def _look(allowed: int | None, windows: list[SlidingWindow], now: float) -> WindowState | None:
    """Return how a limit per minute stands; None: there is none."""
    if allowed is None:
        return None
    reset_s = 0.0
    for window in windows:
        reset_s = max(reset_s, window.empty_s(now))
    return WindowState(allowed, max(0, allowed - count_charged(windows, now)), reset_s)


class Reservation:
    """Charge of one request. Settled once, whatever ends it: it is a context manager, and idempotent."""

    __slots__ = ("_first", "_ledger", "_requests", "_settled", "account", "charged", "estimate", "if_left", "tenant")

    def __init__(self, ledger: Ledger, tenant: str, account: Account, requests: WindowState | None) -> None:
        self._ledger = ledger
        self._requests = requests  # as it left them
        self._settled = False
        self._first = 0  # tokens of this request in `charged`
        self.tenant = tenant
        self.account = account
        self.estimate = NO_TOKENS
        self.if_left = NO_TOKENS  # what it has cost that ends before an engine has it
        self.charged: Slice | None = None  # where its estimate was charged; None: no limit on tokens per minute

    def reserve(self, estimate: TokenCounts) -> Refusal | None:
        """Charge what the request will probably use; or return which limit has no room for that, with no token
        charged. Called once, before any of the others.
        """
        return self._ledger._reserve(self, estimate)

    def state(self) -> LimitState:
        """Return how much of the tenant's limits per minute is left: of requests as of its begin, of tokens now."""
        account = self.account
        tokens = _look(account.tokens_per_minute, account.token_windows(), self._ledger._clock.now())
        return LimitState(self._requests, tokens)

    def correct(self, cached_tokens: int) -> None:
        """Count so many of the prompt's tokens as found in a cache from now on, not from the end of the request
        on.
        """
        before = self.estimate
        prompt = before.input_tokens + before.cached_tokens
        cached = min(cached_tokens, prompt)
        counts = self.charged is None or not self.charged.left
        if counts and not self._settled and cached > before.cached_tokens:
            self._ledger._correct(self, TokenCounts(prompt - cached, cached, before.output_tokens))

    def follow(self, output_tokens: int) -> None:
        """Charge what the answer has, so far, beyond the estimate, `UNCHARGED_TOKENS` and more at a time."""
        before = self.estimate
        if output_tokens >= before.output_tokens + UNCHARGED_TOKENS and not self._settled:
            self._ledger._correct(self, TokenCounts(before.input_tokens, before.cached_tokens, output_tokens))

    def settle(self, actual: TokenCounts) -> None:
        """Put what the request used in the place of the estimate; a second call does nothing."""
        if not self._settled:
            self._settled = True
            self._ledger._settle(self, actual)

    def charge(self, computed: int, now: float) -> None:
        """Charge the estimate to the tokens per minute."""
        self.charged, self._first = self.account.tokens.charge(computed, now), computed
        self.account.tokens_charged += computed

    def give_back(self, computed: int, now: float) -> None:
        """Take tokens off what the estimate was charged, as far as that is there and counts."""
        amount = min(computed, self._first)
        if self.charged is not None and self.account.tokens.correct(self.charged, -amount, now):
            self._first -= amount
            self.account.returned_tokens += amount

    def __enter__(self) -> Reservation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """A request that was not settled reached no engine."""
        self.settle(self.if_left)
