"""Cells over processes: in order, failures named, an early end; and one worker, in this process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from router.lab.sweep.capacity import CapacityResult, CapacitySearch
from router.lab.sweep.cells import CellFailure, CellResult, LoadLevel, SweepCell, WorkloadSource
from router.lab.sweep.parallel import SweepStopped, SweepWorker, run_parallel
from router.lab.workloads.offered_load import measure_demand
from router.lab.workloads.source import WorkloadSpec as Size
from tests.router.lab.sweep.cells import PROFILE, a_cell


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


HALF = LoadLevel("rho", 0.5)
FEW = WorkloadSource("tools", Size(requests=300))


def few(load: LoadLevel = HALF) -> SweepCell:
    return replace(a_cell(instances=2, load=load), source=FEW)


def test_a_cell_is_played_at_its_load_and_virtual_time_is_told() -> None:
    passed: list[float] = []
    done = SweepWorker(passed.append, lambda: False).run(few())
    assert isinstance(done, CellResult)
    asked = measure_demand(FEW.workload(1, print))
    assert done.requests_per_s == pytest.approx(0.5 * 2 * asked.capacity(PROFILE))
    assert done.figures.requests == 300
    assert 0 < sum(passed) <= done.took_s


def test_a_rate_is_taken_as_it_is() -> None:
    done = SweepWorker(lambda _: None, lambda: False).run(few(LoadLevel("rate", 5.0)))
    assert isinstance(done, CellResult)
    assert done.requests_per_s == 5.0
    assert done.took_s > 299 / 5.0  # the last one comes then


def test_the_window_ends_with_the_last_arrival_of_an_open_workload() -> None:
    worker = SweepWorker(lambda _: None, lambda: False)
    done = worker.run(few(LoadLevel("rate", 1000.0)))  # all at once: hardly any has ended when the last one comes
    assert isinstance(done, CellResult)
    assert done.figures.requests == 300
    assert done.figures.requests_per_s * 299 / 1000.0 < 100


def test_a_search_for_a_rho_answers_in_requests_per_second() -> None:
    cell = replace(few(), limits=few().limits._replace(ttft_s=1e9, tpot_s=1e9))
    found = SweepWorker(lambda _: None, lambda: False).run(CapacitySearch(cell))
    assert isinstance(found, CapacityResult)
    assert found.search.cell.load.kind == "rate"
    assert not found.bounded


def test_told_to_stop_it_stops() -> None:
    with pytest.raises(SweepStopped, match="stopped after"):
        SweepWorker(lambda _: None, lambda: True).run(few())


def test_the_last_workload_is_kept(tmp_path: Path) -> None:
    lines = [
        f'{{"timestamp": {i * 1000}, "input_length": 600, "output_length": 5, "hash_ids": [{i}, {i + 99}]}}\n'
        for i in range(9)
    ]
    file = tmp_path / "trace.jsonl"
    file.write_text("".join(lines))
    worker = SweepWorker(lambda _: None, lambda: False)
    cell = replace(few(), source=WorkloadSource(str(file)))
    first = worker.run(cell)
    file.unlink()
    assert worker.run(cell) == first
