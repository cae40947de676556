"""A fleet whose size follows a rule: when instances begin and end, and what they are paid for."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

from router.fleet.fleet import Fleet
from router.fleet.instance import Instance
from router.lab.simulator.autoscaler import Autoscaling
from router.lab.simulator.outcome import FleetSize, RequestEnd, SimulationOutcome
from router.lab.simulator.run import simulate
from router.lab.simulator.scaling_rules import NewestLeaves, RouterSignal
from router.lab.simulator.scenario import Scenario
from router.lab.workloads.model import Session, Span, Turn, Workload
from router.lab.workloads.presets import CODEX
from tests.suites.simulation import LEAST, PROFILE, WARM

FLEET = Scenario(profile=PROFILE, instances=3)


class Plan(NewestLeaves):
    """Wants what a function of the time says."""

    def __init__(self, count: Callable[[float], int]) -> None:
        self._count = count

    def find_desired(self, fleet: Fleet, current: int, now: float) -> int:
        return self._count(now)


class OldestLeaves(Plan):
    def choose_leaving(self, ready: Sequence[Instance], now: float) -> Instance:
        return ready[0]


def steady(lasts_s: int, answer: int = 20) -> Workload:
    """A request of 4,000 tokens for one of five texts, every half second."""
    turns = [Turn(0, (Span(number % 5, 4000),), answer, 0.0) for number in range(2 * lasts_s)]
    return Workload("steady", 0, tuple(Session(at, at / 2, (turn,)) for at, turn in enumerate(turns)))


def sent_to(outcome: SimulationOutcome, number: int) -> list[float]:
    return sorted(at_s for at_s, to in zip(outcome.arrived_s, outcome.instance, strict=True) if to == number)


def test_an_instance_is_paid_for_from_its_order_and_serves_when_it_has_started() -> None:
    plan = Plan(lambda now: 3 if now >= 30 else 1)
    outcome = simulate(FLEET, LEAST, steady(200), autoscaling=Autoscaling(plan, start_s=60.0))
    assert set(outcome.end) == {RequestEnd.OK}
    assert outcome.sizes == [FleetSize(0.0, 1, 1), FleetSize(30.0, 3, 1), FleetSize(90.0, 3, 2), FleetSize(90.0, 3, 3)]
    assert 90.0 <= sent_to(outcome, 1)[0] < 92.0
    assert 90.0 <= sent_to(outcome, 2)[0] < 92.0


def test_an_instance_that_leaves_gets_no_request_and_is_paid_for_until_it_has_none() -> None:
    plan = OldestLeaves(lambda now: 1 if now >= 45 else 2)
    outcome = simulate(FLEET, LEAST, steady(100, answer=400), autoscaling=Autoscaling(plan, at_first=2))
    assert set(outcome.end) == {RequestEnd.OK}
    assert outcome.double_bookings == 0
    assert 40.0 < sent_to(outcome, 0)[-1] < 45.0
    begun, drains, gone = outcome.sizes
    assert (begun, drains) == (FleetSize(0.0, 2, 2), FleetSize(45.0, 2, 1))
    last_s = max(at + took for at, took, to in zip(outcome.arrived_s, outcome.duration_s, outcome.instance, strict=True)
                 if to == 0)  # fmt: skip
    assert last_s > 48.0  # it had answers to finish
    assert last_s <= gone.since_s <= last_s + 0.5
    assert (gone.paid, gone.ready) == (1, 1)


def test_it_comes_back_with_an_empty_cache() -> None:
    """All texts fit one instance; after a change of instances each is computed again, once."""
    away = OldestLeaves(lambda now: 2 if 15 <= now < 60 or now >= 120 else 1)
    outcome = simulate(FLEET, WARM, steady(100), autoscaling=Autoscaling(away, start_s=30.0))
    rows = zip(outcome.arrived_s, outcome.instance, outcome.local_tokens, strict=True)
    cold = [(at_s, to) for at_s, to, local in rows if not local]
    assert [to for _, to in cold if _ >= 60.0] == [1] * 5  # instance 0 left at 60 s with all that it held


def test_a_start_that_is_given_up_never_serves() -> None:
    plan = Plan(lambda now: 2 if now < 60 else 1)
    outcome = simulate(FLEET, LEAST, steady(150), autoscaling=Autoscaling(plan, start_s=90.0))
    assert outcome.sizes == [FleetSize(0.0, 1, 1), FleetSize(15.0, 2, 1), FleetSize(60.0, 1, 1)]
    assert set(outcome.instance) == {0}


def test_a_rule_that_changes_nothing_is_a_fleet_of_fixed_size() -> None:
    def columns(outcome: SimulationOutcome) -> dict[str, bytes]:
        return {name: column.tobytes() for name, column in vars(outcome).items() if isinstance(column, array)}

    load = CODEX.scale(tokens=0.2, sessions=24 / 610, turns=6 / 33, think=0.2).workload(1)
    scaled = simulate(FLEET, WARM, load, seed=1, autoscaling=Autoscaling(Plan(lambda now: 3), at_first=3))
    assert columns(scaled) == columns(simulate(FLEET, WARM, load, seed=1))


def test_the_routers_signal_grows_with_a_load_and_shrinks_after_it() -> None:
    busy = [Turn(0, (Span(number, 8000),), 20, 0.0) for number in range(900)]
    idle = [Turn(0, (Span(1000, 4000),), 20, 0.0) for _ in range(60)]
    starts_s = [number / 3 for number in range(900)] + [300.0 + 10 * number for number in range(60)]
    sessions = tuple(Session(n, at_s, (turn,)) for n, (at_s, turn) in enumerate(zip(starts_s, [*busy, *idle],
                                                                                    strict=True)))  # fmt: skip
    rule = RouterSignal()
    outcome = simulate(FLEET, WARM, Workload("step", 0, sessions), autoscaling=Autoscaling(rule, start_s=30.0))
    assert max(size.ready for size in outcome.sizes) == 3
    assert outcome.sizes[-1].paid == 1
    assert outcome.sizes[-1].since_s > 600.0  # five minutes after the load's end
