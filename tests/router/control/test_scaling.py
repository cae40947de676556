"""What is read of a fleet, and whose cache is worth least, over real records."""

from __future__ import annotations

from router.clock import ManualClock
from router.config import schema
from router.control.scaling import Scaling, find_least_worth, find_own_tokens, group_instances, measure_worth, read_role
from router.fleet.engine_facts import Gauges
from router.fleet.working_set import WorkingSets
from router.scheduling.policy.policy import build_policy
from router.scheduling.policy.record import Attempt, Record, Stages
from router.telemetry.recent_records import RecentRecords
from tests.router.fleet.test_fleet import fleet_of, target
from tests.suites.views import a_row, a_view, an_overlap

MOST = build_policy("most", schema.PolicyConfig.model_validate({"scorers": [{"name": "prefix_overlap"}]}))


def a_record(number: int, at_wall_s: float, **held: int) -> Record:
    """A request that went where most of it is held, of these tokens by instance."""
    view = a_view(*(a_row(name, an_overlap(tokens)) for name, tokens in held.items()), prompt_tokens=1000)
    record = Record(
        id=f"r-{number}", number=number, arrived_s=0.0, at_wall_s=at_wall_s, endpoint="/v1/completions", model="m",
        stream=False, tokens_from="local", prompt_tokens_counted=1000, stages=Stages(),
    )  # fmt: skip
    record.attempts.append(Attempt(MOST.decide(view), 0, 0))
    return record


def test_a_reading_adds_up_what_gets_requests() -> None:
    fleet = fleet_of("a", "b", "c")
    for name in "abc":
        fleet.apply_metrics(name, {0: Gauges(0, 0, 0.0, 16, 10_000, None, None)}, 1.0)
    target(fleet, "a/0").book(1000, 1000)
    target(fleet, "c/0").book(1000, 1000)
    fleet.drain("c")
    reading = read_role(group_instances(fleet)["m", "both"], 5120, 2.0)
    # the prior: 10 ms, 100 us per token, 2 ns for each of 1000 x 500 pairs
    assert reading == (2, 1.0, 111.0, 111.0 / 2000, 1000, 5120, 20_000)


def test_what_only_the_chosen_instance_held() -> None:
    assert find_own_tokens(a_record(1, 0.0, a=960, b=320)) == ("a", 640)
    assert find_own_tokens(a_record(1, 0.0, a=320, b=320)) in (("a", 0), ("b", 0))
    assert find_own_tokens(a_record(1, 0.0, a=480)) == ("a", 480)


def test_a_backlog_counts_up_to_what_one_instance_has() -> None:
    fleet = fleet_of("a", "b")
    for name in "ab":
        fleet.apply_metrics(name, {0: Gauges(0, 0, 0.0, 16, 10_000, None, None)}, 1.0)
    for _ in range(3):
        target(fleet, "a/0").book(20_000, 20_000)
    reading = read_role(fleet, None, 2.0)
    assert reading.queued_ms > 6000
    assert (reading.queues, reading.live_tokens) == (2.0, 10_000)


async def test_the_cache_that_is_worth_least() -> None:
    records = RecentRecords(100)
    for number, record in enumerate(
        [a_record(1, 1000.0, a=960, b=320), a_record(2, 1000.0, a=0, b=160), a_record(3, 10.0, a=0, b=960)]
    ):
        records.add(record)
        assert len(records) == number + 1
    worth = await measure_worth(records, 1100.0)
    assert worth == {"a": 640, "b": 160}  # the third is too old
    fleet = fleet_of("a", "b")
    assert find_least_worth(fleet, worth) == ("b", 160, 0)
    fleet.drain("a")
    assert find_least_worth(fleet, worth) is None


async def test_what_is_wanted_is_described_with_its_reason() -> None:
    clock, fleet = ManualClock(100.0, 5000.0), fleet_of("a", "b")
    scaling = Scaling(fleet, WorkingSets(), RecentRecords(10), ["m"], clock)
    (before,) = await scaling.describe()
    assert (before["desired"], before["reason"]) == (None, None)
    for _ in range(100):
        clock.advance(0.5)
        target(fleet, "a/0").book(100_000, 100_000)  # more than can be computed
        scaling.read()
    (found,) = await scaling.describe()
    assert (found["model"], found["role"], found["instances"], found["reason"]) == ("m", "both", 2, "prefill")
    assert found["desired"] == scaling.wanted["m", "both"].instances > 10
    assert found["scale_in"] == {"instance": "b", "tokens": 0, "requests": 0}
    fleet.leave("a")
    fleet.leave("b")
    scaling.read()
    assert scaling.wanted == {}
