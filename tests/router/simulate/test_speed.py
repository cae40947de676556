"""Decisions per second: counted where they happen."""

from __future__ import annotations

from dataclasses import replace

from router.clock import ManualClock
from router.sim.workloads import TOOLS
from router.simulate.speed import Speed, of_speeds, timed
from tests.router.simulate.cells import a_cell


class Ticking(ManualClock):
    """A millisecond passes whenever somebody looks."""

    def now(self) -> float:
        self.advance(0.001)
        return super().now()


def test_every_decision_is_timed() -> None:
    workload = replace(TOOLS, requests=50, per_s=5.0).workload(1)
    speed = timed(a_cell(instances=3), workload, Ticking())
    assert (speed.policy, speed.instances, speed.decisions) == ("warm", 3, 50)
    assert 0.05 - 1e-6 <= speed.deciding_s <= 0.15  # one to three looks apart per decision


def test_a_row_per_size_and_a_column_per_policy() -> None:
    speeds = [Speed(policy, size, 1000, size / 100) for size in (8, 1000) for policy in ("warm", "random")]
    grid = of_speeds(speeds, "tools")
    assert grid.heads == ("instances", "warm", "random")
    assert [[entry.text for entry in row] for row in grid.rows] == [["8", "12,500", "12,500"], ["1,000", "100", "100"]]
