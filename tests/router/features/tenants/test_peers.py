"""The limits and the usage of tenants over three processes: the workers of a host, or hosts."""

from __future__ import annotations

import pytest

from router.clock import ManualClock
from router.config.sections.clients import PricesConfig, TenantLimits
from router.control.duty import Duty
from router.features.tenants.ledger import DAY_S, Ledger, Reservation
from router.features.tenants.peers import SharedTenants, TenantReport, UsageReceived, UsageReport
from router.features.tenants.token_counts import TokenCounts
from router.features.tenants.usage import UsageRow
from router.features.tenants.usage_book import UsageBook
from tests.router.control.peers.memory_network import MemoryNetwork
from tests.router.features.tenants.reservations import reserve

LIMIT = 10
LIMITS = TenantLimits(requests_per_minute=LIMIT, concurrent=LIMIT, budget_per_day=1000)
PRICES = PricesConfig(input=1, cached=1, output=1)
DAY = 20_000
TOKENS = TokenCounts(1, 2, 3)


class Process:
    """A process that charges the tenant `acme`, on duty where `duty` is its run."""

    def __init__(self, run: str, group: Group, duty: str = "a") -> None:
        self.run = run
        self.ledger, self.usage = Ledger(PRICES, group.clock, run), UsageBook()
        self.duty = Duty(run, held=run == duty)
        self.duty.follow(duty)
        peers = group.network.join(run)
        self.shared = SharedTenants(self.ledger, self.usage, self.duty, peers)
        peers.parts.append(self.shared)

    def admit(self, count: int = 1) -> list[Reservation]:
        """Return the reservations of those requests that are admitted, of so many."""
        made = [reserve(self.ledger, "acme", LIMITS, TokenCounts(1, 0, 0)) for _ in range(count)]
        self.shared.share()
        return [one for one in made if isinstance(one, Reservation)]

    def use(self, tokens: TokenCounts = TOKENS) -> None:
        """A request has used so much."""
        reserved = reserve(self.ledger, "acme", TenantLimits(), tokens)
        assert isinstance(reserved, Reservation)
        reserved.settle(tokens)
        self.usage.add_request((self.ledger.today(), "acme", "m"), tokens, 0.5)
        self.shared.share()

    def used_tokens(self) -> float:
        """Return the tokens that this process counts for the budget."""
        return self.ledger.used_today("acme")


class Group:
    """Processes a, b and c; a is on duty."""

    def __init__(self) -> None:
        self.clock = ManualClock(0.0, DAY * DAY_S)
        self.network = MemoryNetwork()
        self.all = [Process(run, self) for run in "abc"]

    @property
    def in_progress(self) -> list[int]:
        return [one.ledger.in_progress("acme") for one in self.all]

    @property
    def used(self) -> list[float]:
        return [one.used_tokens() for one in self.all]

    def share(self) -> None:
        for one in self.all:
            one.shared.share()

    def move_duty(self, run: str) -> None:
        for one in self.all:
            one.duty.follow(run)


def requests_of(book: UsageBook) -> int:
    """Return the requests in a book, and leave them there."""
    rows = book.take()
    for row in rows:
        book.add(row)
    return sum(row.requests for row in rows)


# charges


def test_three_processes_admit_the_limit_once() -> None:
    group = Group()
    assert sum(len(one.admit(3)) for one in group.all * 2) == LIMIT
    assert group.in_progress == [LIMIT] * 3


def test_what_has_not_changed_is_not_published_again() -> None:
    group = Group()
    group.all[1].admit()
    assert len(group.network.messages(TenantReport)) == 2, "to each of the others"
    group.share()
    assert len(group.network.messages(TenantReport)) == 2


def test_each_side_of_a_partition_admits_it_once_and_a_silent_process_holds_no_requests() -> None:
    group = Group()
    a, b, c = group.all
    assert len(a.admit(4)) == 4
    cut_off = group.network.members["a"].cut_off
    cut_off.update("bc")
    assert group.in_progress == [4, 4, 4], "it may only be slow"
    assert [len(one.admit(20)) for one in (a, b, c)] == [6, 6, 0]
    for one, silent in ((a, "bc"), (b, "a"), (c, "a")):
        for run in silent:
            one.shared.forget(run)
    assert group.in_progress == [10, 6, 6]
    cut_off.clear()
    group.network.meet("a")
    assert group.in_progress == [16, 16, 16]
    assert [len(one.admit(5)) for one in group.all] == [0, 0, 0]


def test_a_process_publishes_its_own_charges_only() -> None:
    group = Group()
    a, b, _ = group.all
    a.admit(2)
    assert [*b.shared.state()] == [TenantReport("acme", b.ledger.totals("acme"))]
    assert (b.ledger.totals("acme").requests, b.ledger.totals("acme").open) == (0, 0)


def test_one_that_ends_gives_its_requests_back_and_a_new_one_learns_of_all() -> None:
    group = Group()
    a, b, _ = group.all
    ended, _ = b.admit(2)
    a.admit()
    ended.settle(TokenCounts(100, 0, 0))
    b.shared.share()
    assert group.in_progress == [2, 2, 2]
    group.network.end("b")
    group.all[1] = Process("b again", group)
    group.network.meet("b again")
    assert group.in_progress == [1, 1, 1]
    used = a.used_tokens()
    assert used >= 100
    assert group.all[2].used_tokens() == used


# usage


def test_usage_is_gathered_at_the_worker_on_duty() -> None:
    group = Group()
    a, *others = group.all
    for one in others:
        one.use()
        one.usage.add_refusal((DAY, "acme", "m"), "concurrent")
        one.shared.send_usage()
        one.shared.send_usage()
    (row,) = a.usage.take()
    assert row == UsageRow(DAY, "acme", "m", 2, TokenCounts(2, 4, 6), 1.0, {"concurrent": 2})
    assert len(group.network.messages(UsageReport)) == len(group.network.messages(UsageReceived)) == 2


def test_what_is_handed_over_counts_once_for_a_budget() -> None:
    group = Group()
    _, b, c = group.all
    for one in (b, c, c):
        one.use()
    before = group.used
    assert before == [before[0]] * 3
    for one in (b, c):
        one.shared.send_usage()
    group.share()
    assert group.used == before
    assert b.ledger.totals("acme").spent == TokenCounts()


def test_a_report_is_repeated_until_it_is_acknowledged_and_counted_once() -> None:
    group = Group()
    a, b, _ = group.all
    b.use()
    before = group.used
    group.network.mute.add("b")  # the acknowledgement is lost
    b.shared.send_usage()
    group.network.mute.clear()
    b.use()  # what comes meanwhile is in the next report
    b.shared.send_usage()
    group.share()
    b.shared.send_usage()
    group.share()
    assert [report.number for report in group.network.messages(UsageReport)] == [1, 1, 2]
    assert requests_of(a.usage) == 2
    assert group.used == [2 * one for one in before]


def test_a_report_that_the_one_on_duty_never_got_goes_to_the_next() -> None:
    group = Group()
    _, b, c = group.all
    b.use()
    c.use()
    before = group.used
    group.network.mute.add("a")
    for one in (b, c):
        one.shared.send_usage()
    group.network.end("a")
    group.all.remove(group.all[0])
    group.move_duty("b")
    for one in (c, b, c):
        one.shared.send_usage()
    group.share()
    assert requests_of(b.usage) == 2
    assert [one.used_tokens() for one in (b, c)] == before[1:]


def test_the_next_on_duty_reports_what_the_file_has_in_the_place_of_the_one_before() -> None:
    group = Group()
    a, b, c = group.all
    a.ledger.adopt("file", {"acme": TokenCounts(100, 0, 0)})
    b.use()
    b.shared.send_usage()
    (row,) = a.usage.take()
    spent = TokenCounts(100, 0, 0).plus(row.tokens)  # as it is in the file then
    c.use()
    for admitted in b.admit(4):
        admitted.settle(TokenCounts())
    group.share()
    before = group.used
    group.network.end("a")
    group.all.remove(a)
    group.move_duty("b")
    b.ledger.adopt("file", {"acme": spent})
    group.share()
    assert group.used == before[1:]
    for one in group.all:
        assert one.ledger.use("acme", LIMITS)["requests_per_minute"].used == 4, "not again under its new name"


@pytest.mark.parametrize("acknowledged_late", [False, True])
def test_usage_of_the_day_before_changes_no_budget_of_today(acknowledged_late: bool) -> None:
    group = Group()
    _, b, _ = group.all
    b.use()
    if acknowledged_late:
        group.network.mute.add("b")
        b.shared.send_usage()
        group.network.mute.clear()
    group.clock.advance(DAY_S)
    b.use()
    before = group.used
    assert before == [before[1]] * 3
    b.shared.send_usage()
    group.share()
    assert group.used == before


def test_usage_stays_here_while_nobody_is_on_duty() -> None:
    group = Group()
    _, b, _ = group.all
    b.use()
    b.duty.follow(None)
    b.shared.send_usage()
    assert group.network.messages(UsageReport) == []
    b.duty.follow("b")
    b.shared.send_usage()
    assert requests_of(b.usage) == 1


def test_a_worker_that_stops_keeps_what_was_not_acknowledged() -> None:
    group = Group()
    _, b, _ = group.all
    b.use()
    group.network.mute.add("a")
    b.shared.send_usage()
    assert requests_of(b.usage) == 0
    b.use()
    b.shared.reclaim()
    b.shared.reclaim()
    assert requests_of(b.usage) == 2
