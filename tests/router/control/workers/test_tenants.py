"""What a leader and its followers tell each other of tenants, over channels that deliver in order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from router.clock import ManualClock
from router.config.sections.clients import PricesConfig, TenantLimits
from router.control.workers.messages import FrameReader, Message, TenantReport, UsageReport, encode_frame
from router.control.workers.tenants import FollowerTenants, LeaderTenants
from router.tenants.ledger import DAY_S, Ledger, Reservation
from router.tenants.token_counts import TokenCounts
from router.tenants.usage_book import UsageBook
from tests.router.tenants.reservations import reserve

LIMITS = TenantLimits(requests_per_minute=10, concurrent=10, budget_per_day=1000)
KEY = (20_000, "acme", "m")


class Line:
    """Stands for a channel: what is sent is encoded, and heard when it is read."""

    def __init__(self) -> None:
        self._sent: list[Message] = []

    def send(self, message: Message) -> None:
        self._sent.append(message)

    def read(self) -> list[Any]:
        sent, self._sent = self._sent, []
        return list(FrameReader().feed(encode_frame(sent)))


class Group:
    """A leader and two followers."""

    def __init__(self) -> None:
        self.clock = ManualClock(0.0, 20_000 * DAY_S)
        self.ledgers = [Ledger(PricesConfig(), self.clock, name) for name in ("leader", "one", "two")]
        self.books = [UsageBook() for _ in self.ledgers]
        self.down = {1: Line(), 2: Line()}
        self.up = {1: Line(), 2: Line()}
        self.leader = LeaderTenants(self.ledgers[0], self.books[0], self.channels)
        self.followers = {n: FollowerTenants(self.ledgers[n], self.books[n], self.up[n].send) for n in (1, 2)}

    def channels(self) -> Iterator[tuple[int, Any]]:
        return iter(self.down.items())

    def admit(self, number: int) -> Reservation | None:
        reserved = reserve(self.ledgers[number], "acme", LIMITS, TokenCounts(10, 0, 0))
        return reserved if isinstance(reserved, Reservation) else None

    def tell(self) -> int:
        """Let all tell, and hear; return how many messages that took."""
        count = 0
        for number, follower in self.followers.items():
            follower.tell()
            for message in self.up[number].read():
                self.leader.apply(number, message)
                count += 1
        self.leader.tell()
        for number, line in self.down.items():
            for message in line.read():
                assert isinstance(message, TenantReport)
                self.followers[number].apply(message)
                count += 1
        return count

    @property
    def in_progress(self) -> list[int]:
        return [ledger.in_progress("acme") for ledger in self.ledgers]


def test_all_workers_together_admit_the_limit_once() -> None:
    group = Group()
    admitted = 0
    for n in range(30):
        admitted += group.admit(n % 3) is not None
        group.tell()
    assert admitted == 10
    assert group.in_progress == [10, 10, 10]


def test_what_has_not_changed_is_not_told_again() -> None:
    group = Group()
    group.admit(1)
    assert group.tell() == 2, "to the leader, and on to the other follower"
    assert group.tell() == 0


def test_a_follower_that_dies_gives_its_requests_back_and_a_new_one_hears_all() -> None:
    group = Group()
    first = group.admit(1)
    group.admit(1)
    group.admit(0)
    assert first is not None
    first.settle(TokenCounts(100, 0, 0))
    group.tell()
    assert group.in_progress == [2, 2, 2]
    group.leader.drop_worker(1)
    group.ledgers[1] = Ledger(PricesConfig(), group.clock, "one again")
    group.followers[1] = FollowerTenants(group.ledgers[1], group.books[1], group.up[1].send)
    for message in group.leader.report_all(1):
        assert isinstance(message, TenantReport)
        group.followers[1].apply(message)
    group.tell()
    assert group.in_progress == [1, 1, 1]
    assert [ledger.used_today("acme") for ledger in group.ledgers] == [110, 110, 110]


def test_usage_is_added_up_at_the_leader() -> None:
    group = Group()
    for number, follower in group.followers.items():
        group.books[number].add_request(KEY, TokenCounts(1, 2, 3), 0.5)
        group.books[number].add_refusal(KEY, "concurrent")
        follower.tell_usage()
        follower.tell_usage()
        (report,) = group.up[number].read()
        assert isinstance(report, UsageReport)
        group.leader.apply(number, report)
    (row,) = group.books[0].take()
    assert (row.requests, row.tokens, row.gpu_s, row.refused) == (2, TokenCounts(2, 4, 6), 1.0, {"concurrent": 2})
