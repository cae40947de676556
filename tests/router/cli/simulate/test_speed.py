"""Decisions per second: counted where they happen."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from router.cli.simulate import speed
from router.cli.simulate.speed import DecisionSpeed, measure, of_speeds, time_decisions
from router.clock import ManualClock
from router.lab.sweep.spec import SweepSpec
from router.lab.workloads.presets import TOOLS
from tests.router.lab.sweep.cells import a_cell


class Ticking(ManualClock):
    """A millisecond passes whenever somebody looks."""

    def now(self) -> float:
        self.advance(0.001)
        return super().now()


def test_every_decision_is_time_decisions() -> None:
    workload = replace(TOOLS, requests=50, per_s=5.0).workload(1)
    one = time_decisions(a_cell(instances=3), workload, Ticking().now)
    assert (one.policy, one.instances, one.decisions) == ("warm", 3, 50)
    assert 0.05 - 1e-6 <= one.deciding_s <= 0.15  # one to three looks apart per decision


def test_a_row_per_size_and_a_column_per_policy() -> None:
    speeds = [DecisionSpeed(policy, size, 1000, size / 100) for size in (8, 1000) for policy in ("warm", "random")]
    grid = of_speeds(speeds, "tools")
    assert grid.heads == ("instances", "warm", "random")
    assert [[entry.text for entry in row] for row in grid.rows] == [["8", "12,500", "12,500"], ["1,000", "100", "100"]]


def test_each_figure_is_told_as_soon_as_it_is_known_and_all_of_them_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "SIZES", "2,3")
    monkeypatch.setattr(speed, "LEAST", 30)
    out = StringIO()
    measure(SweepSpec(workload="tools", policies=("least_requests", "random")), Console(file=out, width=80))
    lines = out.getvalue().splitlines()
    told = [line.rpartition(":")[0] for line in lines[:4]]
    assert told == [f"{policy}, {size} instances" for size in (2, 3) for policy in ("least_requests", "random")]
    assert [line.split()[0] for line in lines[4:] if line.strip()[:1].isdigit()] == ["2", "3"]
