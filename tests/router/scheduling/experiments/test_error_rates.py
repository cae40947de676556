"""How often a trial is wrong, and how soon it is right: through its public interface, over simulated experiments.

Traffic is that of `traffic.py`: correlated sessions, drifting load, shocks. The trial is looked at after every request.

False alarms, in 1,000 experiments of two equal arms (2 % of requests fail on both), 200 units each, half of them 90/10
and half 50/50, half with a margin of 20 % and half with none: any verdict on any metric, or the guard. Promised: at
most 50 at alpha 0.05, 10 at alpha 0.01. Seen: 1 and 0. (Fewer than promised, since eleven claims share alpha as if each
erred alone.)

Planted arms. Units of the bad arm that were closed and counted when the guard (20 %, alpha 0.01, at least 50 units)
acted, in 100 experiments each; all were ended:

    planted                              guard's metric   at 50/50: median  P95  worst   at 90/10: median  P95  worst
    everything 2x slower                 ttft_p90                      163  380    786                 86  260    437
    everything 2x slower                 ttft_p50                       86  208    241                 58  109    129
    10 % of requests fail (2 %)          error_rate                    190  353    488                 63  126    216
    all requests fail                    ttft_p90                       50   50     50                 50   50     50
    hit share 0.5 (0.9)                  hit_share                      50   50     50                 50   50     50
    20 % of requests 5x slower           ttft_p90                      376 1048   1513                158  401    665

A small arm needs fewer units of its own, since the first arm's are known better; counting both, it needs more. P90 is
the hardest to tell where it drifts by itself, as here (between sessions by a factor of 1.6, with the load by 3): the
median tells what is slower altogether much sooner.
"""

from __future__ import annotations

import pytest

from router.config.sections.experiment import Metric
from router.scheduling.experiments.experiment import RunningExperiment
from router.scheduling.experiments.results import Finding
from tests.router.scheduling.experiments.traffic import Behaviour, an_experiment, drive, traffic

EXPERIMENTS, UNITS = 400, 200  # of the 1,000 that gave the figures above
RUNS = 10  # of the 100 that made the table

EVEN = {"a": 50.0, "b": 50.0}
SMALL = {"a": 90.0, "b": 10.0}


def strongest_claim(seed: int) -> tuple[bool, float]:
    """Of two equal arms: was anything said (at alpha 0.05), and the strongest evidence ever, in parts of its bar."""
    shares = SMALL if seed % 2 else EVEN
    guard = {"alpha": 0.05, "worse_by": 0.2 if seed % 4 < 2 else 0.0, "min_units": 1, "action": "report"}
    experiment = RunningExperiment(an_experiment(shares, guard=guard))
    findings = list(drive(experiment, traffic(shares, {}, UNITS, seed)))
    arm = experiment.report().arms[1]
    said = bool(findings) or any(standing.verdict != "not yet known" for standing in arm.standings)
    report = experiment.report()
    strongest = max(standing.evidence or 0 for standing in arm.standings)
    return said, max((arm.guard_evidence or 0) / report.guard_bar, strongest / report.bar)


def test_equal_arms_are_called_different_no_more_often_than_alpha() -> None:
    seen = [strongest_claim(seed) for seed in range(EXPERIMENTS)]
    at_5_percent = sum(said for said, _ in seen)
    at_1_percent = sum(evidence >= 5 for _, evidence in seen)  # bars are inversely proportional to alpha
    print(f"false alarms in {EXPERIMENTS} experiments: {at_5_percent} at alpha 0.05, {at_1_percent} at 0.01")
    assert at_5_percent <= 0.05 * EXPERIMENTS
    assert at_1_percent <= 0.01 * EXPERIMENTS
    assert max(evidence for _, evidence in seen) > 0.1, "bets are made: chance alone wins some"


def ended_after(metric: Metric, planted: Behaviour, shares: dict[str, float], units: int, seed: int) -> int | None:
    """Units of the arm when the guard ended it."""
    experiment = RunningExperiment(an_experiment(shares, guard={"metric": metric}))
    found = next(drive(experiment, traffic(shares, {"b": planted}, units, seed)), None)
    return None if found is None else found.units


@pytest.mark.parametrize("shares", [EVEN, SMALL], ids=["50/50", "90/10"])
@pytest.mark.parametrize(
    ("metric", "planted", "even_most", "small_most"),
    [
        ("ttft_p50", Behaviour(slower=2), 241, 129),
        ("error_rate", Behaviour(fails=0.1), 488, 216),
        ("ttft_p90", Behaviour(fails=1), 50, 50),
        ("hit_share", Behaviour(hit=0.5), 50, 50),
    ],
    ids=["2x slower", "10 % fail", "all fail", "loses its hits"],
)
def test_a_bad_arm_is_ended_within_so_many_units(
    metric: Metric, planted: Behaviour, even_most: int, small_most: int, shares: dict[str, float]
) -> None:
    most = even_most if shares is EVEN else small_most
    units = round(3 * most / shares["b"] * 100 / 2)
    ended = [ended_after(metric, planted, shares, units, seed) for seed in range(RUNS)]
    assert all(count is not None and 50 <= count <= most for count in ended), ended


@pytest.mark.parametrize(
    ("planted", "most"), [(Behaviour(slower=2), 786), (Behaviour(tail=0.2), 1513)], ids=["2x slower", "slow tail"]
)
def test_an_arm_that_is_slow_at_p90_is_ended_too(planted: Behaviour, most: int) -> None:
    ended = [ended_after("ttft_p90", planted, EVEN, 3 * most, seed) for seed in range(5)]
    assert all(count is not None and count <= most for count in ended), ended


def test_a_better_arm_is_called_better_and_never_ended() -> None:
    found: list[Finding] = []
    verdicts = []
    for seed in range(RUNS):
        experiment = RunningExperiment(an_experiment(EVEN))
        found += drive(experiment, traffic(EVEN, {"b": Behaviour(slower=0.5, hit=0.98)}, 900, seed))
        verdicts.append([standing.verdict for standing in experiment.report().arms[1].standings])
    assert found == []
    assert [row[0] for row in verdicts] == ["better"] * RUNS
    assert not any("worse" in row for row in verdicts)
