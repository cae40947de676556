"""Cells over processes: in order, failures named, an end when it is wanted."""

from __future__ import annotations

from dataclasses import replace

from router.testbed.sweep.cells import CellFailure, CellResult, SweepCell, WorkloadSource
from router.testbed.sweep.parallel import run_parallel
from router.testbed.workloads.source import WorkloadSpec as Size
from tests.router.testbed.sweep.cells import a_cell


def some(count: int, requests: int = 40) -> list[SweepCell]:
    source = WorkloadSource("tools", Size(requests=requests))
    return [replace(a_cell(instances=2, seed=seed), source=source) for seed in range(count)]


def test_results_come_in_the_order_of_the_cells_and_one_that_fails_is_named() -> None:
    cells = some(4)
    cells[1] = replace(cells[1], source=WorkloadSource("no-such-workload"))
    looks: list[tuple[int, float]] = []

    def look(done: int, virtual_s: float) -> bool:
        looks.append((done, virtual_s))
        return False

    results = run_parallel(cells, 2, look)
    assert [type(result) for result in results] == [CellResult, CellFailure, CellResult, CellResult]
    assert [result.cell.seed for result in results if isinstance(result, CellResult)] == [0, 2, 3]
    (failed,) = [result for result in results if isinstance(result, CellFailure)]
    assert failed.what == "warm, 2 instances, no pool, rho 0.9, seed 1"
    assert failed.reason.startswith('ConfigError: unknown workload "no-such-workload"')
    assert looks[-1][0] == 4


def test_no_more_is_begun_once_it_is_to_end() -> None:
    results = run_parallel(some(12, 400), 1, lambda done, _: done >= 1)
    assert 1 <= len(results) < 12
    assert all(isinstance(result, CellResult) for result in results)
