"""The sentences, word by word."""

from __future__ import annotations

from math import inf

import pytest

from router.control.summaries import (
    describe_standings,
    describe_verdict,
    format_result,
    format_value,
    replace_infinities,
)
from router.scheduling.experiments.results import ArmReport, ExperimentReport, MetricResult


def standing(**changed: object) -> MetricResult:
    return MetricResult("ttft_p90", 210.4, 190.0, 1240.0, 80, "better", 1e5, 0, 0)._replace(**changed)  # type: ignore[arg-type]


def arm(name: str, mine: MetricResult, out: str | None = None) -> ArmReport:
    return ArmReport(name, name, None, 50.0, out, 3, 1200, 4000, 7, 1.2, None, (mine,))


def test_how_the_arms_stand() -> None:
    first = arm("warm", standing(estimate=300.0, low=270.0, high=330.0, verdict=None))
    other = arm("other", standing(), "ttft_p90: too slow")
    assert list(
        describe_standings(ExperimentReport(0.01, 2000.0, 200.0, (first, other), ("the arms share caches",)))
    ) == [
        "warm: 50% of the units; 1,200 are over and 3 are not, with 4,000 requests of which 7 failed",
        "other: 50% of the units; 1,200 are over and 3 are not, with 4,000 requests of which 7 failed",
        "other is out: ttft_p90: too slow",
        "other: ttft_p90 210 ms (190 ms to 1,240 ms), warm 300 ms (270 ms to 330 ms): better",
        "the arms share caches",
    ]


def test_what_nobody_knows_is_not_compared() -> None:
    first = arm("warm", standing(estimate=None, low=None, high=None, verdict=None))
    report = ExperimentReport(0.01, 2000.0, 200.0, (first, arm("b", standing())), ())
    assert not any("ttft_p90" in line for line in describe_standings(report))


@pytest.mark.parametrize(
    ("value", "metric", "said"),
    [
        (1234.4, "ttft_p50", "1,234 ms"),
        (inf, "duration_p90", "no answer"),
        (0.123, "hit_share", "12.3%"),
        (0.0, "error_rate", "0.0%"),
        (None, "ttft_p90", "unknown"),
    ],
)
def test_figures(value: float | None, metric: str, said: str) -> None:
    assert format_value(value, metric) == said


def test_verdicts() -> None:
    assert describe_verdict(standing()) == "better"
    assert format_result(standing(high=inf)) == "210 ms (190 ms to no answer)"
    assert describe_verdict(standing(verdict="not yet known", requests_needed=None)) == "not yet known"
    assert describe_verdict(standing(verdict="not yet known", requests_needed=1200)) == (
        "not yet known; about 1,200 more requests would tell, if it goes on like this"
    )


def test_json_has_no_infinity() -> None:
    assert replace_infinities({"a": [inf, 1.0, None], "b": {"c": inf}}) == {
        "a": ["infinite", 1.0, None],
        "b": {"c": "infinite"},
    }
