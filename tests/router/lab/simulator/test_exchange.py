"""Routers in virtual time that publish what they book: known after the delay, and also after frames were lost."""

from __future__ import annotations

import pytest

from router.control.peers.messages import BreakerMoved
from router.control.peers.network import FAR_GATHER_S as GATHER_S
from router.control.peers.peer_runs import BEAT_S
from router.fleet.load import Booking, LoadBook
from router.kvcache.events import TargetId
from router.lab.rng import Rng
from router.lab.simulator.event_queue import EventQueue
from router.lab.simulator.exchange import connect_exchanges
from router.lab.simulator.router import SimulatedRouter
from router.lab.simulator.scenario import ReplicaLink, Scenario
from tests.suites.simulation import LEAST, PROFILE

A = TargetId("engine-0/0")
AGREED_WITHIN_S = 2.0


class Routers:
    """Three routers of one engine."""

    def __init__(self, link: ReplicaLink) -> None:
        self.time = EventQueue()
        self.scenario = Scenario(profile=PROFILE, instances=1, routers=3, exchange=link)
        self.exchanges = connect_exchanges(3, link, self.time, Rng(7))
        self.routers = [
            SimulatedRouter(LEAST, self.scenario, self.time.clock, seed=n, exchange=exchange)
            for n, exchange in enumerate(self.exchanges)
        ]

    def book(self, router: int) -> Booking:
        booking = self.load_book(router).book(100, 100)
        self.exchanges[router].report_load(A)
        return booking

    def release(self, router: int, booking: Booking) -> None:
        booking.release()
        self.exchanges[router].report_load(A)

    def load_book(self, router: int) -> LoadBook:
        target = self.routers[router].scheduler.fleet.target(A)
        assert target is not None
        return target.load_book

    def run(self, for_s: float) -> None:
        reached: list[bool] = []
        self.time.at(self.time.now_s + for_s, reached.append, True)
        while not reached:
            self.time.step()

    @property
    def counts(self) -> list[int]:
        return [self.load_book(router).requests for router in range(3)]


def test_bookings_are_known_after_the_delay_and_the_next_ones_are_gathered() -> None:
    routers = Routers(ReplicaLink(delay_s=0.005))
    booking = routers.book(0)
    assert routers.counts == [1, 0, 0]
    routers.run(0.0051)  # the first message after a pause is sent at once
    assert routers.counts == [1, 1, 1]
    routers.book(0)
    routers.release(0, booking)
    routers.book(0)
    routers.run(0.0051)
    assert routers.counts == [2, 1, 1]
    routers.run(GATHER_S)
    assert routers.counts == [2, 2, 2]


@pytest.mark.parametrize("lost", [0.05, 0.2])
def test_all_agree_within_two_seconds_whatever_was_lost(lost: float) -> None:
    routers = Routers(ReplicaLink(lost=lost))
    held: list[tuple[int, Booking]] = []
    differed = 0
    for n in range(60):
        held.append((n % 3, routers.book(n % 3)))
        if n % 2:
            routers.release(*held.pop(0))
        routers.run(BEAT_S / 5)
        differed += len(set(routers.counts)) > 1
    assert differed  # frames were lost
    routers.run(AGREED_WITHIN_S)
    assert routers.counts == [len(held)] * 3
    for router, booking in held:
        routers.release(router, booking)
    routers.run(AGREED_WITHIN_S)
    assert routers.counts == [0, 0, 0]


def test_a_breaker_that_one_router_opened_is_open_at_the_others() -> None:
    routers = Routers(ReplicaLink())
    routers.exchanges[0].share(BreakerMoved(A, True, None, True))
    routers.run(2 * GATHER_S)
    targets = [router.scheduler.fleet.target(A) for router in routers.routers[1:]]
    assert [target is not None and target.breaker.is_open for target in targets] == [True, True]
