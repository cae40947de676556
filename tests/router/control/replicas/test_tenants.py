"""The limits of tenants over three routers, through the frames that they exchange."""

from __future__ import annotations

from router.clock import ManualClock
from router.config.sections.clients import PricesConfig, TenantLimits
from router.control.replicas.frames import decode_messages, decode_replica_frame, encode_replica_frame
from router.control.replicas.peers import SILENT_S
from router.control.replicas.tenants import SharedTenants
from router.control.workers.messages import Message
from router.control.workers.tenants import LeaderTenants
from router.tenants.ledger import DAY_S, Ledger, Reservation
from router.tenants.token_counts import TokenCounts
from router.tenants.usage_book import UsageBook
from tests.router.tenants.reservations import reserve

LIMIT = 10
LIMITS = TenantLimits(requests_per_minute=LIMIT, concurrent=LIMIT)


class Router:
    """A router. What it tells arrives at all others of its side."""

    def __init__(self, run: str, group: dict[str, Router], clock: ManualClock) -> None:
        self.run, self.group, self.side = run, group, "one"
        self.ledger = Ledger(PricesConfig(), clock, run)
        self.leader = LeaderTenants(self.ledger, UsageBook(), lambda: iter(()))
        self.shared = SharedTenants(self.leader, self.send, self.heard_runs, clock)
        group[run] = self

    def heard_runs(self) -> list[str]:
        return [run for run, other in self.group.items() if other is not self and other.side == self.side]

    def send(self, message: Message) -> None:
        frame = decode_replica_frame(encode_replica_frame("news", self.run, 1, 0.0, [message]))
        assert frame is not None
        found, skipped = decode_messages(frame)
        assert skipped == 0
        for run in self.heard_runs():
            for one in found:
                self.group[run].shared.apply(one, self.run)

    def admit(self, count: int) -> int:
        admitted = 0
        for _ in range(count):
            admitted += isinstance(reserve(self.ledger, "acme", LIMITS, TokenCounts(1, 0, 0)), Reservation)
            self.leader.tell()
        return admitted


def routers() -> tuple[ManualClock, list[Router]]:
    clock = ManualClock(0.0, 20_000 * DAY_S)
    group: dict[str, Router] = {}
    return clock, [Router(run, group, clock) for run in ("a", "b", "c")]


def test_three_routers_admit_the_limit_once() -> None:
    _, group = routers()
    assert sum(one.admit(3) for one in group * 2) == LIMIT


def test_each_side_of_a_partition_admits_it_once_and_a_silent_router_holds_no_requests() -> None:
    clock, group = routers()
    a, b, c = group
    assert a.admit(4) == 4
    a.side = "other"
    for one in group:
        one.shared.poll()
    assert b.ledger.in_progress("acme") == 4, "it may only be slow"
    assert (a.admit(20), b.admit(20), c.admit(20)) == (6, 6, 0)
    clock.advance(SILENT_S + 0.1)
    for one in group:
        one.shared.poll()
    assert [one.ledger.in_progress("acme") for one in group] == [10, 6, 6]
    a.side = "one"
    for one in group:
        for message in one.shared.state():
            one.send(message)
    assert [one.ledger.in_progress("acme") for one in group] == [16, 16, 16]
    assert [one.admit(5) for one in group] == [0, 0, 0]


def test_what_a_router_hears_of_another_it_does_not_tell_on() -> None:
    _, (a, b, _) = routers()
    a.admit(2)
    (told,) = b.shared.state()
    assert (told.totals.requests, told.totals.open) == (0, 0)  # type: ignore[attr-defined]
