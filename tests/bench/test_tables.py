"""The benchmark's table: each figure beside its peer's, its bar, and whether it is met."""

from __future__ import annotations

import io

from rich.console import Console

from tests.bench.figures import Bar, Line, beside
from tests.bench.results import Effort, Outcome
from tests.bench.tables import show


def shown(*outcomes: Outcome) -> list[str]:
    page = io.StringIO()
    show(outcomes, Console(file=page, width=160))
    return [" ".join(line.split()) for line in page.getvalue().splitlines()]


def outcome(row: str, lines: list[Line], **other: object) -> Outcome:
    facts = {"ended": "2026-11-21 13:00+00:00", "took_s": 30.0, "machine": "m", "others_cores": 0.0} | other
    return Outcome(row=row, title=f"title of {row}", effort=Effort(), lines=lines, **facts)  # type: ignore[arg-type]


def test_a_line_shows_both_figures_the_ratio_the_bar_and_the_verdict() -> None:
    line = beside("CPU per request", "us", [155.0, 150.0, 160.0], [50.0, 50.0, 50.0], "vllm-router", Bar(1.0, "ratio"))
    assert "CPU per request, us 155 (150-160) 50.0 vllm-router 3.10 (3.00-3.20)x ≤ 1x missed" in shown(
        outcome("small", [line])
    )


def test_bars_of_our_own_figure_have_its_unit_and_both_senses_their_sign() -> None:
    lines = [
        Line("p99", "ms", [3.0], bar=Bar(10.0)),
        Line("blocks", "million/s", [2.0], bar=Bar(1.0, sense=">=")),
        Line("resident", "MB", [90.0]),
    ]
    seen = shown(outcome("some", lines))
    assert "p99, ms 3.00 ≤ 10 ms met" in seen
    assert "blocks, million/s 2.00 ≥ 1 met" in seen
    assert "resident, MB 90.0" in seen


def test_the_pure_build_is_beside_the_compiled_one() -> None:
    line = Line("CPU", "us", [50.0], [40.0], "peer", [1.25], pure=[100.0], pure_ratios=[2.5])
    seen = shown(outcome("small", [line, Line("p50", "ms", [2.0])], compiled=True))
    assert seen[2] == "compiled pure peer ratio bar"
    assert "CPU, us 50.0 100 2.50x 40.0 peer 1.25x" in seen
    assert "p50, ms 2.00" in seen


def test_without_a_compiled_build_the_pure_one_stands_alone() -> None:
    seen = shown(outcome("small", [Line("p50", "ms", [2.0])]))
    assert seen[2] == "pure peer ratio bar"
    assert "nothing is compiled: all figures are of the pure build" in seen
    mixed = shown(outcome("a", [Line("p50", "ms", [2.0])]), outcome("b", [Line("p99", "ms", [3.0])], compiled=True))
    assert "p50, ms 2.00" in mixed
    assert not any("nothing is compiled" in line for line in mixed)


def test_what_is_left_out_says_why_in_one_line() -> None:
    seen = shown(outcome("peers", [], left_out="it does not answer:\na trace\nError: no such file"))
    assert "peers is left out: it does not answer: Error: no such file" in seen
    assert not any("a trace" in line for line in seen)


def test_a_busy_machine_is_told_of_and_an_idle_one_is_not() -> None:
    seen = shown(outcome("busy", [], others_cores=1.26), outcome("idle", [], others_cores=0.05))
    assert "busy: 1.3 cores were busy before it began" in seen
    assert not any(line.startswith("idle:") for line in seen)


def test_the_last_line_counts_bars_and_not_lines_without_one() -> None:
    lines = [Line("a", "ms", [1.0], bar=Bar(2.0)), Line("b", "ms", [3.0], bar=Bar(2.0)), Line("c", "ms", [3.0])]
    assert shown(outcome("x", lines), outcome("y", []))[-1] == "1 of 2 bars met; 2 rows in 1.0 minutes"


def test_brackets_in_a_note_are_text() -> None:
    assert "x: [bold] stays" in shown(outcome("x", [], notes=["[bold] stays"]))
