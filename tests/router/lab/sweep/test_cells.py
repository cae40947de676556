"""A fleet's words, and the scenario that follows from them."""

from __future__ import annotations

from dataclasses import replace

from router.lab.simulator.scenario import EventLags, LinkSpeed, ReplicaLink, StoreScenario, Trouble
from router.lab.sweep.cells import SHARE, FleetOption
from tests.router.lab.sweep.cells import PROFILE

SMALL = replace(PROFILE, kv_tokens=100_000)
LAGS = EventLags(0.01, 0.05)


def test_what_is_not_there_is_not_said_but_for_the_pool() -> None:
    assert str(FleetOption(8)) == "8 instances, no pool"
    assert str(FleetOption(1, pool="40000")) == "1 instance, pool at 40,000 tokens/s"


def test_all_that_is_there_is_said() -> None:
    whole = FleetOption(1200, 4, "40000:2e6", "90000", True, 3, "slow")
    assert str(whole) == (
        "1,200 instances, 4 of them prefill, pool of 2,000,000 tokens at 40,000 tokens/s, "
        "host memory at 90,000 tokens/s, admission, 3 routers (share nothing), trouble slow"
    )
    front = [FleetOption(8, routers=2, exchange="1"), FleetOption(8, routers=2, exchange="20:5", sticky=True)]
    assert [one.beside for one in front] == [
        "no pool, 2 routers (share all in 1 ms)",
        "no pool, 2 routers (share all in 20 ms, 5 % lost, sticky)",
    ]
    assert whole.beside == str(whole).removeprefix("1,200 instances, ")


def test_the_rest_of_the_scenario_is_as_given() -> None:
    trouble = Trouble(events_lost=0.5)
    fleet = FleetOption(6, prefills=2, admission=True, routers=3, exchange="5", sticky=True)
    made = fleet.scenario(SMALL, LAGS, trouble)
    assert (made.instances, made.prefills, made.routers) == (6, 2, 3)
    assert (made.exchange, made.sticky) == (ReplicaLink(0.005), True)
    assert (made.profile, made.lags, made.trouble) == (SMALL, LAGS, trouble)
    assert made.admission is not None
    assert made.admission.enabled
    assert made.store is made.host is None


def test_a_pool_without_a_size_grows_with_the_fleet_and_host_memory_with_the_instance() -> None:
    for size in (4, 8):
        made = FleetOption(size, pool="40000", host_memory="90000").scenario(SMALL, LAGS, Trouble())
        assert made.store == StoreScenario(SHARE * size * 100_000, LinkSpeed(40_000.0))
        assert made.host == StoreScenario(SHARE * 100_000, LinkSpeed(90_000.0))


def test_sizes_that_are_said_are_taken() -> None:
    made = FleetOption(4, pool="40000:5000", host_memory="90000:6000").scenario(SMALL, LAGS, Trouble())
    assert made.store == StoreScenario(5000, LinkSpeed(40_000.0))
    assert made.host == StoreScenario(6000, LinkSpeed(90_000.0))
