"""A trial as the router drives it: told of requests, looked at, and read."""

from __future__ import annotations

from math import inf

import pytest

from router.scheduling.experiments.experiment import RunningExperiment
from tests.router.scheduling.experiments.traffic import Behaviour, a_record, an_experiment, drive, finish, traffic


def a_trial(**keys: object) -> RunningExperiment:
    return RunningExperiment(an_experiment({"a": 50, "b": 50}, **keys))


def tell(experiment: RunningExperiment, arm: str, unit: int, at_s: float, **outcome: object) -> None:
    """One request that begins and ends."""
    record = a_record(unit, at_s)
    experiment.begin_request(arm, unit.to_bytes(8), record)
    experiment.end_request(finish(record, **outcome))


def test_an_unknown_arm_is_refused() -> None:
    with pytest.raises(ValueError, match="no arm `c` in this experiment; its arms: a, b"):
        a_trial().begin_request("c", b"u", a_record(1, 0.0))


def test_a_unit_counts_when_its_time_is_over_and_all_of_it_has_ended() -> None:
    experiment = a_trial()
    running = a_record(1, 0.0)
    experiment.begin_request("a", b"u", running)
    tell(experiment, "b", 2, 1.0)
    experiment.poll(60.0)
    assert experiment.open_units == 2, "the first one still runs"
    experiment.end_request(finish(running))
    experiment.poll(60.0)
    assert experiment.open_units == 0
    assert [(arm.units_open, arm.units_closed) for arm in experiment.report().arms] == [(0, 1), (0, 1)]


def test_a_request_that_hangs_does_not_hold_up_the_rest() -> None:
    experiment = a_trial()
    for unit in range(20):
        tell(experiment, "a", unit, 0.0, ttft_ms=500.0, duration_ms=1000.0)
    experiment.poll(30.0)
    hanging = a_record(99, 40.0)
    experiment.begin_request("a", b"hangs", hanging)
    tell(experiment, "b", 100, 41.0)
    experiment.poll(61.5)
    assert experiment.open_units == 0  # ten times the first arm's P90 of 500 ms is long over
    assert experiment.report().arms[0].standings[1].units == 21
    experiment.end_request(finish(hanging))  # and its end is no surprise


def test_a_request_unit_is_over_with_its_request() -> None:
    experiment = a_trial(unit="request")
    tell(experiment, "a", 1, 100.0)
    experiment.poll(100.1)
    assert experiment.report().arms[0].units_closed == 1


def test_a_window_counts_as_a_whole() -> None:
    experiment = a_trial(unit="time", window_s=600)
    for at_s in (0.0, 590.0):
        record = a_record(int(at_s), at_s)
        experiment.begin_request("a", b"window", record)
        experiment.end_request(finish(record, ttft_ms=100.0 + at_s))
    experiment.poll(599.0)
    assert experiment.report().arms[0].units_closed == 0
    experiment.poll(600.0)
    report = experiment.report().arms[0]
    assert report.units_closed == 1
    assert report.standings[1].estimate == pytest.approx(690, rel=0.01)


def test_requests_that_never_began_here_are_ignored() -> None:
    experiment = a_trial()
    experiment.end_request(finish(a_record(1, 0.0)))
    assert sum(arm.requests for arm in experiment.report().arms) == 0


def test_a_retry_is_the_same_request() -> None:
    experiment, record = a_trial(), a_record(1, 0.0)
    experiment.begin_request("a", b"u", record)
    experiment.begin_request("a", b"u", record)
    experiment.end_request(finish(record))
    assert experiment.report().arms[0].requests == 1


def test_the_guard_rolls_back_once_and_says_why() -> None:
    experiment = a_trial(guard={"metric": "ttft_p90"})
    findings = list(drive(experiment, traffic({"a": 50, "b": 50}, {"b": Behaviour(fails=1.0)}, 300, 1)))
    assert len(findings) == 1
    found = findings[0]
    assert (found.arm, found.cause, found.metric) == ("b", "guard", "ttft_p90")
    assert found.estimate_arm == inf
    assert found.units == 50
    assert found.evidence >= experiment.report().guard_bar
    assert found.why.startswith("ttft_p90: no answer against ")
    assert found.why.endswith(" of a: worse by more than 20%, after 50 units")
    out = experiment.report().arms[1]
    assert out.out == found.why
    assert out.units_closed == 50, "later ones do not count"
    assert not experiment.is_over


def test_the_guard_lets_times_be_as_much_longer_as_it_was_told() -> None:
    planted = {"b": Behaviour(slower=1.8)}
    for worse_by, ended in ((0.0, ["b"]), (1.0, [])):
        experiment = a_trial(guard={"metric": "ttft_p50", "worse_by": worse_by})
        found = drive(experiment, traffic({"a": 50, "b": 50}, planted, 1000, 1))
        assert [finding.arm for finding in found] == ended


def test_a_guard_that_only_reports_goes_on_counting() -> None:
    experiment = a_trial(guard={"metric": "ttft_p90", "action": "report"})
    findings = list(drive(experiment, traffic({"a": 50, "b": 50}, {"b": Behaviour(fails=1.0)}, 300, 1)))
    assert len(findings) == 1
    assert experiment.report().arms[1].out is None
    assert experiment.report().arms[1].units_closed > 100


def test_a_limit_takes_out_an_arm_at_once() -> None:
    experiment = a_trial(limits={"error_rate_max": "5%", "ttft_p90_max_ms": 1000})
    found = []
    for second in range(20):
        tell(experiment, "a", 2 * second, float(second))
        tell(experiment, "b", 2 * second + 1, float(second), status=500)
        found += experiment.poll(second + 1.0)
    assert [(finding.arm, finding.cause, finding.metric) for finding in found] == [("b", "limit", "error_rate_max")]
    assert found[0].why == "error_rate_max: 6 of 6 requests are beyond it (0.05)"
    assert found[0].estimate_arm == 1.0
    assert not experiment.is_over


def test_waiting_alone_trips_the_limit_on_time() -> None:
    experiment = a_trial(limits={"ttft_p90_max_ms": 1000})
    for second in range(10):
        experiment.begin_request("b", second.to_bytes(8), a_record(second, float(second)))
        if found := experiment.poll(second + 0.5):
            break
    assert [finding.metric for finding in found] == ["ttft_p90_max_ms"]


def test_a_stream_that_breaks_late_counts_against_the_limit() -> None:
    experiment = a_trial(limits={"error_rate_max": 0.1})
    records = [a_record(second, float(second)) for second in range(40)]
    for record in records:
        record.ttft_ms = 100.0
        experiment.begin_request("b", record.id.encode(), record)
    found = []
    for second, record in enumerate(records):
        found += experiment.poll(60.0 + second)
        experiment.end_request(finish(record, end="broken"))
    assert [finding.metric for finding in found] == ["error_rate_max"]


def test_without_the_first_arm_the_trial_is_over() -> None:
    experiment = a_trial(limits={"error_rate_max": 0.05})
    found = []
    for second in range(10):
        tell(experiment, "a", second, float(second), status=500)
        found += experiment.poll(second + 1.0)
    assert [finding.arm for finding in found] == ["a"]
    assert experiment.is_over
    tell(experiment, "b", 99, 20.0)
    assert experiment.report().arms[1].requests == 0


def test_an_arm_that_the_operator_took_out() -> None:
    experiment = a_trial()
    tell(experiment, "b", 1, 0.0)
    experiment.exclude_arm("b", "by hand")
    tell(experiment, "b", 2, 1.0)
    experiment.poll(60.0)
    out = experiment.report().arms[1]
    assert (out.out, out.requests, out.units_closed) == ("by hand", 1, 0)


def test_a_look_closes_so_many_units_and_no_more() -> None:
    experiment = a_trial(unit="request")
    for unit in range(450):
        tell(experiment, "a", unit, 0.0)
    left = []
    for _ in range(3):
        experiment.poll(100.0)
        left.append(experiment.open_units)
    assert left == [250, 50, 0]


def test_the_report_of_an_experiment_with_one_arm() -> None:
    experiment = RunningExperiment(an_experiment({"a": 100}))
    tell(experiment, "a", 1, 0.0)
    experiment.poll(60.0)
    report = experiment.report()
    assert [standing.verdict for standing in report.arms[0].standings] == [None] * 5
    assert report.warnings == ()


def test_three_arms_are_each_compared_with_the_first() -> None:
    shares = {"a": 40.0, "b": 30.0, "c": 30.0}
    experiment = RunningExperiment(an_experiment(shares))
    list(drive(experiment, traffic(shares, {"c": Behaviour(hit=0.4)}, 600, 3)))
    report = experiment.report()
    assert (report.guard_bar, report.bar) == (4 / 0.01, 40 / 0.01)
    verdicts = {arm.arm: arm.standings[3].verdict for arm in report.arms}
    assert verdicts == {"a": None, "b": "not yet known", "c": "worse"}


def test_what_is_still_needed_is_said() -> None:
    experiment = a_trial(guard={"action": "report", "worse_by": 10})
    list(drive(experiment, traffic({"a": 50, "b": 50}, {"b": Behaviour(slower=1.6)}, 150, 2)))
    standing = experiment.report().arms[1].standings[0]
    assert standing.verdict == "not yet known"
    assert standing.units_needed is not None
    assert standing.requests_needed is not None
    assert standing.requests_needed > standing.units_needed > 10


def test_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = "the arms share caches and queues, so each shows what the others do as well; isolate: instances helps"
    assert a_trial().report().warnings == (shared,)
    assert a_trial(isolate="instances").report().warnings == ()
    experiment = a_trial(unit="request", isolate="instances")
    for unit in range(300):
        tell(experiment, "b" if unit % 4 == 0 else "a", unit, 0.0)
    experiment.poll(10.0)
    experiment.poll(10.0)
    assert experiment.report().warnings == (
        "b gets another share of the units than it should: the comparison is not to be trusted",
    )
    monkeypatch.setattr("router.scheduling.experiments.enrolment.OPEN_UNITS", 1)
    monkeypatch.setattr("router.scheduling.experiments.enrolment.CLOSED_UNITS", 1)
    experiment = a_trial(isolate="instances")
    for unit in range(3):
        tell(experiment, "a", unit, 0.0)
    assert experiment.report().warnings == (
        "2 units do not count: 100000 were open already",
        "1 closed units are forgotten: if they come back, they count twice",
    )


def test_units_that_fall_by_their_shares_raise_no_warning() -> None:
    experiment = RunningExperiment(an_experiment({"a": 90, "b": 10}, isolate="instances"))
    list(drive(experiment, traffic({"a": 90, "b": 10}, {}, 200, 1)))
    assert experiment.report().warnings == ()
