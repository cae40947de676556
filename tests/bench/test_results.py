"""Outcomes of rows survive an interruption, and only those of the same effort count."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tests.bench.figures import Bar, Line, beside
from tests.bench.results import Effort, Outcome, load_outcome
from tests.suites.rows import keep

FULL = Effort()
LINES = [beside("CPU", "us", [3.0, 4.0], [2.0, 2.0], "peer", Bar(1.0, "ratio")), Line("p50", "ms", [1.5])]
OUTCOME = Outcome("small", "a small request", FULL, "2026-11-21 13:00+00:00", 4.2, "a machine", 0.1, LINES, ["note"])


def test_a_kept_outcome_comes_back_as_it_was(tmp_path: Path) -> None:
    keep(OUTCOME, tmp_path / "bench" / "small.json")
    assert load_outcome("small", FULL, False, tmp_path / "bench") == OUTCOME
    assert [path.name for path in (tmp_path / "bench").iterdir()] == ["small.json"]  # nothing half written is left


def test_another_effort_is_measured_again(tmp_path: Path) -> None:
    keep(OUTCOME, tmp_path / "small.json")
    assert load_outcome("small", Effort(quick=True), False, tmp_path) is None
    assert load_outcome("small", Effort(repetitions=7), False, tmp_path) is None


def test_another_build_is_measured_again(tmp_path: Path) -> None:
    keep(OUTCOME, tmp_path / "small.json")
    assert load_outcome("small", FULL, True, tmp_path) is None


def test_what_was_left_out_or_never_measured_is_tried_again(tmp_path: Path) -> None:
    keep(msgspec.structs.replace(OUTCOME, left_out="no peer"), tmp_path / "small.json")
    assert load_outcome("small", FULL, False, tmp_path) is None
    assert load_outcome("large", FULL, False, tmp_path) is None


def test_a_file_of_another_version_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "small.json").write_text('{"row": "small", "seconds": 3}')
    assert load_outcome("small", FULL, False, tmp_path) is None
    (tmp_path / "small.json").write_text('{"row": "sm')
    assert load_outcome("small", FULL, False, tmp_path) is None


def test_missed_lines_are_those_with_a_bar_that_is_not_met() -> None:
    assert [line.what for line in OUTCOME.missed] == ["CPU"]  # ratios 1.5 and 2, bar 1


def test_a_quick_effort_takes_the_quick_figures() -> None:
    assert (Effort(quick=True).of(10, 3), Effort().of(10, 3)) == (3, 10)
    assert (Effort(quick=True).seconds(9.0, 0.5), Effort().seconds(9.0, 0.5)) == (0.5, 9.0)
