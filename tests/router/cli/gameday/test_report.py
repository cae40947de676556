"""The report of a game day, from a run that was not played: table, remarks, JSON and chart."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.cli.gameday.chart import draw_run
from router.cli.gameday.report import LONG_DAY, describe_progress, json_run, run_remarks, run_table
from router.clock import ManualClock
from router.config.sections.gameday import GamedayBounds, GamedayEnd, GamedayFile
from router.lab.gameday.clients import LoadEndpoint
from router.lab.gameday.ending import Violation
from router.lab.gameday.faults import describe
from router.lab.gameday.outcome import Look, PlayedFault
from router.lab.gameday.play import GamedayRun
from router.lab.gameday.reading import MetricsReading
from router.lab.loadgen.load import SentRequest

DAY = GamedayFile.model_validate(
    {
        "about": "x",
        "calm_from_s": 1,
        "ends_s": 20,
        "must": {"failed": 0},
        "faults": [
            {"fault": "kill", "at_s": 5, "engine": 0, "must": {"failed": 0, "hit_share": 0.5}},
            {"fault": "flood", "at_s": 10, "until_s": 12},
        ],
    }
)


def row(end_s: float, failure: str | None = None) -> SentRequest:
    answered = {} if failure else {"ttft_s": 0.25, "prompt_tokens": 100, "cached_tokens": 75}
    return SentRequest(
        session=0, turn=0, sent_s=end_s - 0.5, late_s=0, duration_s=0.5, planned_tokens=100, planned_output_tokens=4,
        failure=failure, status=503 if failure else None, **answered,
    )  # fmt: skip


@pytest.fixture
def run() -> GamedayRun:
    """Two faults; a request failed at the first, which the metrics showed after half a second."""
    played = GamedayRun(DAY, LoadEndpoint("http://r", "m"), ManualClock())
    played.rows += [row(2), row(3), row(5.5, "no engine"), row(7), row(11), row(14)]
    played.looks += [Look(at_s / 2, MetricsReading(restarts=at_s > 10)) for at_s in range(40)]
    kill, flood = DAY.faults
    played.played += [
        PlayedFault("kill", describe(kill), 5.0, 5.0, kill.must, 8),
        PlayedFault("flood", describe(flood), 10.0, 12.0, GamedayBounds(), 8),
    ]
    return played


def test_the_table(run: GamedayRun) -> None:
    rows = [[entry.text for entry in row] for row in run_table(run, run.outcomes()).rows]
    assert rows == [
        ["calm", "", "1-5", "2", "0/0", "0.250", "0.25", "0.25", "75%", "", "", "holds"],
        ["kill", "engine-0", "5", "2", "1/0", "0.250", "0.25", "0.25", "75%/50%", "0.5", "0.5", "broken"],
        ["flood", "clients 16, tokens 4000", "10-12", "2", "0", "0.250", "0.25", "0.25", "75%", "", "0.0", "holds"],
    ]


def test_the_remarks(run: GamedayRun) -> None:
    run.skipped.append(DAY.faults[0])
    run.interrupted = run.is_stuck = True
    assert list(run_remarks(run, run.outcomes())) == [
        "kill at 5 s: failed broke their bounds",
        "failed 1x: 503 no engine",
        "not played: kill at 5 s: nothing of this router may be touched (--url)",
        "requests of the load had no end long after it: they were given up",
        "interrupted: the report holds what was played before",
    ]


def test_violations_are_named_with_the_fault_before_them(run: GamedayRun) -> None:
    run.script = DAY.model_copy(update={"at_end": GamedayEnd()})
    lines = run_remarks(run, run.outcomes())
    assert "at the end: no violations by 6 requests" in lines
    run.violations += [Violation("router-0: x is 1", 11.5), Violation("x", 2.0), Violation("y")]
    assert not run.holds([])
    assert list(run_remarks(run, run.outcomes()))[:4] == [
        "at the end: 3 violations by 6 requests",
        "router-0: x is 1 (at 11.5 s, 1.5 s after flood clients 16, tokens 4000, seed 1)",
        "x (at 2.0 s, before any fault, seed 1)",
        "y",
    ]


def test_a_long_day_has_rows_of_broken_faults_and_failed_requests_only(run: GamedayRun) -> None:
    run.played += run.played[:1] * LONG_DAY
    outcomes = run.outcomes()
    outcomes = [*outcomes[:3], *outcomes[2:3] * LONG_DAY]  # the calm, the broken one, and many that hold
    assert [row[0].text for row in run_table(run, outcomes).rows] == ["calm", "kill"]
    assert next(run_remarks(run, outcomes)) == f"{LONG_DAY + 1} of {LONG_DAY + 2} faults are within their bounds"
    report = json_run(run, outcomes, "warmroute 1", "now")
    assert [one["failure"] for one in report["requests"]] == ["no engine"]
    assert GamedayFile.model_validate(report["script"]) == DAY


def test_the_json(run: GamedayRun) -> None:
    report = json_run(run, run.outcomes(), "warmroute 1", "now")
    assert (report["holds"], len(report["requests"]), [one["name"] for one in report["faults"]]) == (
        False, 6, ["calm", "kill", "flood"],
    )  # fmt: skip


def test_the_progress(run: GamedayRun) -> None:
    assert describe_progress(run) == "recovering   6 requests, 1 failed"
    run.current = DAY.faults[1]
    assert describe_progress(run).startswith("flood ")
    run.current = None
    run.played.clear()
    assert describe_progress(run).startswith("calm ")


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_chart(run: GamedayRun, tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"day.{suffix}"
    draw_run(run, run.outcomes(), "warmroute 1", "now", file)
    assert file.stat().st_size > 5_000
