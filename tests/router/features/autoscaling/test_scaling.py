"""What is read of a fleet, and whose cache is worth least, over real records."""

from __future__ import annotations

from router.backends.discovery.discovery import StaticDiscovery
from router.clock import ManualClock
from router.config import schema
from router.features.autoscaling.scaling import (
    MOST_ASLEEP,
    READ_EVERY_S,
    Scaling,
    find_least_valuable,
    find_own_tokens,
    group_instances,
    measure_cache_value,
    read_role,
)
from router.features.autoscaling.waiting_models import FORGET_S
from router.fleet.engine_facts import Gauges
from router.fleet.fleet import Fleet
from router.fleet.working_set import WorkingSets
from router.scheduling.policy.policy import build_policy
from router.scheduling.policy.record import Attempt, Record, Stages
from router.telemetry.recent_records import RecentRecords
from tests.router.fleet.test_fleet import fleet_of, target
from tests.suites.views import a_row, a_view, an_overlap

KEY = "m", "both"
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


def a_scaling(*patterns: str, source: StaticDiscovery | None = None) -> tuple[Scaling, Fleet, ManualClock]:
    """Over a fleet of one instance, a."""
    clock, fleet = ManualClock(100.0, 5000.0), fleet_of("a")
    return (
        Scaling(fleet, WorkingSets(), [source or StaticDiscovery([])], RecentRecords(10), patterns, clock),
        fleet,
        clock,
    )


def read_for(scaling: Scaling, clock: ManualClock, seconds: float) -> None:
    for _ in range(int(seconds / READ_EVERY_S)):
        clock.advance(READ_EVERY_S)
        scaling.read()


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
    worth = await measure_cache_value(records, 1100.0)
    assert worth == {"a": 640, "b": 160}  # the third is too old
    fleet = fleet_of("a", "b")
    assert find_least_valuable(fleet, worth) == ("b", 160, 0)
    fleet.drain("a")
    assert find_least_valuable(fleet, worth) is None


async def test_what_is_wanted_is_described_with_its_reason() -> None:
    clock, fleet = ManualClock(100.0, 5000.0), fleet_of("a", "b")
    scaling = Scaling(fleet, WorkingSets(), [], RecentRecords(10), ["m"], clock)
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


def test_a_model_that_cannot_be_woken_is_unknown_without_an_instance() -> None:
    scaling, fleet, clock = a_scaling()
    read_for(scaling, clock, 20.0)
    assert (scaling.follow(KEY), scaling.count(KEY)) == (True, 1)
    fleet.leave("a")
    read_for(scaling, clock, 0.5)
    assert (scaling.follow(KEY), scaling.count(KEY), scaling.wanted) == (False, None, {})


def test_a_model_that_sleeps_is_followed_and_wants_none_until_requests_wait() -> None:
    scaling, fleet, clock = a_scaling("m*")
    target(fleet, "a/0").book(1000, 1000)
    read_for(scaling, clock, 20.0)
    assert scaling.count(KEY) == 2, "busy all the time, over 0.7"
    fleet.leave("a")
    read_for(scaling, clock, 200.0)
    assert scaling.count(KEY) == 2, "the largest of the last five minutes"
    read_for(scaling, clock, 150.0)
    assert scaling.count(KEY) == 0
    changes: list[int | None] = []
    scaling.on_change.append(lambda: changes.append(scaling.count(KEY)))
    scaling.waiting.report("m", 3)
    assert changes == [1], "at once"
    scaling.waiting.report("m", 3)
    assert changes == [1], "once"
    read_for(scaling, clock, FORGET_S + 0.5)
    assert scaling.count(KEY) == changes[-1] == 0


def test_what_may_be_there_does_not_sleep() -> None:
    """Not while a source of instances cannot be read, nor while an instance has not said what it serves."""
    source = StaticDiscovery([])
    scaling, fleet, clock = a_scaling("sleepy", source=source)
    sleepy = "sleepy", "both"
    source.trouble = "the API server is silent"
    scaling.follow(sleepy)
    read_for(scaling, clock, 20.0)
    assert scaling.count(sleepy) is None
    source.trouble = None
    fleet.join(schema.InstanceConfig(url="http://unknown"))
    read_for(scaling, clock, 20.0)
    assert scaling.count(sleepy) is None
    fleet.leave("unknown:80")
    read_for(scaling, clock, 20.0)
    assert scaling.count(sleepy) == 0
    source.trouble = "the API server is silent"
    read_for(scaling, clock, 20.0)
    assert scaling.count(sleepy) == 0, "as it was last"


def test_a_model_that_was_never_seen_is_followed_when_somebody_asks() -> None:
    scaling, _, clock = a_scaling("sleepy", "m")
    sleepy, other = ("sleepy", "both"), ("other", "both")
    assert (scaling.follow(sleepy), scaling.follow(other)) == (True, False)
    assert scaling.follow(("m", "decode")) is False, "it has instances, of another role"
    read_for(scaling, clock, 5.0)
    assert scaling.count(sleepy) is None, "not seen long enough"
    scaling.waiting.note("sleepy")
    assert (scaling.count(sleepy), scaling.count(other)) == (1, None)
    read_for(scaling, clock, 10.0)
    assert scaling.count(sleepy) == 0
    full, *_ = a_scaling("*")
    assert [full.follow((f"sleepy{number}", "both")) for number in range(MOST_ASLEEP + 1)].count(False) == 1
