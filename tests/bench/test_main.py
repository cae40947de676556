"""A run of the benchmark: rows are kept one by one, what cannot be measured says why, and a broken-off run goes on."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from tests.bench.__main__ import run
from tests.bench.figures import Line
from tests.bench.results import Effort, Outcome
from tests.bench.row import BenchRun, NotMeasured, Row

QUICK = Effort(repetitions=1, quick=True)
SEEN: list[str] = []


def works(run: BenchRun) -> list[Line]:
    SEEN.append("works")
    assert run.folder.is_dir()
    run.report("working")
    run.notes.append("it works")
    return [Line("x", "ms", [1.0] * run.effort.repetitions)]


def has_no_peer(run: BenchRun) -> list[Line]:
    raise NotMeasured("the peer is not there")


def has_no_answer(run: BenchRun) -> list[Line]:
    raise ConnectionRefusedError(111, "nobody listens")


def is_interrupted(run: BenchRun) -> list[Line]:
    raise KeyboardInterrupt


GOOD, BARE = Row("good", "good", works, 1, 1), Row("bare", "bare", has_no_peer, 1, 1)
BROKEN = Row("broken", "broken", is_interrupted, 1, 1)


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    SEEN.clear()


def ran(rows: list[Row], folder: Path, resume: bool = False) -> list[Outcome]:
    return run(rows, QUICK, resume, Console(file=io.StringIO()), folder)


def test_a_row_is_measured_and_kept(tmp_path: Path) -> None:
    (outcome,) = ran([GOOD], tmp_path)
    assert (outcome.row, outcome.lines, outcome.notes, outcome.left_out) == (
        "good", [Line("x", "ms", [1.0])], ["it works"], None,
    )  # fmt: skip
    assert (tmp_path / "good.json").exists()


def test_a_row_without_its_peer_is_left_out_and_the_others_go_on(tmp_path: Path) -> None:
    left_out, measured = ran([BARE, GOOD], tmp_path)
    assert left_out.left_out == "the peer is not there"
    assert measured.lines


def test_a_router_that_dies_costs_its_row_and_no_other(tmp_path: Path) -> None:
    dead, measured = ran([Row("dead", "dead", has_no_answer, 1, 1), GOOD], tmp_path)
    assert dead.left_out == "ConnectionRefusedError: [Errno 111] nobody listens"
    assert measured.lines


def test_an_interrupted_run_keeps_what_it_has_and_goes_on_there(tmp_path: Path) -> None:
    assert [outcome.row for outcome in ran([GOOD, BROKEN, BARE], tmp_path)] == ["good"]
    assert [outcome.row for outcome in ran([GOOD, BARE], tmp_path, resume=True)] == ["good", "bare"]
    assert SEEN == ["works"]  # once: the second run took what was kept
    ran([GOOD], tmp_path)
    assert SEEN == ["works", "works"]  # and without --resume it is measured anew
