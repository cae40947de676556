"""The load's report for people: figures, and lines only where something is wrong."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

from rich.console import Console

from router.cli.load.table import REASONS, load_remarks, load_table
from router.testbed.loadgen.report import LoadReport
from tests.router.testbed.bench.rows import answered, failed, loaded


def printed(some: LoadReport) -> str:
    console = Console(width=160, file=StringIO())
    console.print(load_table(some))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_the_table_has_every_figure() -> None:
    text = printed(loaded(answered(), answered(target="b/0", ttft_s=0.4, duration_s=2.2), failed(429, "later")))
    for said in (
        "some at http://x, closed loop, 4 at once",
        "2 / 1 / 0",
        "300 / 400 / 400 / 400",  # mean and nearest ranks of 200 and 400 ms
        "200.0 / 200.0",  # 1.8 s over 9 tokens, twice
        "40.0%",
        "at b/0",
        "110.0% and 100.0%",
        "1.0 / 500.0 / 500.0",
    ):
        assert said in text


def test_where_no_router_names_a_target_there_is_no_row_of_one() -> None:
    assert "at ?" not in printed(loaded(answered(target=None)))
    assert "at ?" in printed(loaded(answered(target=None), answered()))


def test_nothing_measured_is_a_dash() -> None:
    assert "- / - / - / -" in printed(loaded())


def test_all_well_says_nothing() -> None:
    assert load_remarks(loaded(answered())) == []


def test_failures_by_reason_the_most_frequent_first() -> None:
    some = loaded(answered(), failed(500, "rare"), *[failed(503, "often")] * 3)
    assert load_remarks(some)[:2] == ["failed 3x: 503: often", "failed 1x: 500: rare"]


def test_many_reasons_are_counted() -> None:
    some = loaded(*[failed(500, f"reason {number}") for number in range(REASONS + 2)])
    assert "and 2 other reasons (--json has all)" in load_remarks(some)


def test_a_late_client_a_lost_process_and_an_interruption_are_told() -> None:
    some = replace(
        loaded(answered(late_s=0.3)), process_failures=["client process 1 ended with status -9"], interrupted=True
    )
    late, lost, part = load_remarks(some)
    assert "--processes" in late
    assert lost == "client process 1 ended with status -9"
    assert "interrupted" in part
