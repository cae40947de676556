"""What the comparison of admission rules makes of its measurements, and that it goes on where it was."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from tests.agreement import admission_rules as rules
from tests.agreement.admission_rules import Mean, RulesCell, judge
from tests.agreement.windows import Window

THRASHES = RulesCell(2)
FITS = RulesCell(0.7, thrash=False)


def test_against_the_best_of_all_rules_where_memory_does_not_suffice() -> None:
    """2.0 of 2.1 requests/s are 4.8 % behind; 2.2 s are 10 % over 2.0."""
    verdict = judge(THRASHES, {"none": Mean(1.0, 40.0), "other": Mean(2.1, 2.0), "fit": Mean(2.0, 2.2)})
    assert (verdict.behind, verdict.over) == (pytest.approx(0.0476, abs=1e-4), pytest.approx(0.1))
    assert not verdict.met
    assert judge(THRASHES, {"none": Mean(1.0, 40.0), "other": Mean(2.05, 2.01), "fit": Mean(2.0, 2.2)}).met
    assert not judge(THRASHES, {"none": Mean(1.0, 40.0), "other": Mean(2.0, 1.9), "fit": Mean(2.0, 2.2)}).met


def test_elsewhere_only_against_no_admission_control() -> None:
    assert judge(FITS, {"none": Mean(1.0, 1.0), "other": Mean(9.0, 0.1), "fit": Mean(0.985, 2.0)}).met
    assert not judge(FITS, {"none": Mean(1.0, 1.0), "other": Mean(1.0, 1.0), "fit": Mean(0.97, 1.0)}).met


def test_at_least_twelve_cells_thrash_with_and_without_a_pool() -> None:
    thrash = [cell for cell in rules.CELLS if cell.thrash]
    assert len(thrash) >= 12
    assert {cell.pool is None for cell in thrash} == {True, False}
    assert (min(cell.times for cell in thrash), max(cell.times for cell in thrash)) == (1.2, 6)
    assert len({cell.name for cell in rules.CELLS}) == len(rules.CELLS)


def test_what_is_measured_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "RULES", ("none", "fit"))
    small, window, console = RulesCell(0.2, instances=1), Window(5.0, 30.0), Console(quiet=True)
    first = rules.run([small], [1], window, console, tmp_path / "found.jsonl")
    assert [one.key.arm for one in first] == ["none", "fit"]
    monkeypatch.setattr(rules, "measure", None)
    assert rules.run([small], [1], window, console, tmp_path / "found.jsonl") == first
    assert rules.means(first)[small.name].keys() == {"none", "fit"}
