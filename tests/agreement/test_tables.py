"""The tables and the chart show what was found: values, bars, misses with their reasons, and the verdict."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from router.errors import WarmrouteError
from tests.agreement import regret_chart, regret_tables, rows_table
from tests.agreement.cells import Cell
from tests.agreement.kept import Found, kept
from tests.agreement.measured import code_digest
from tests.agreement.regret import TROUBLED, Regret, Score, regrets
from tests.agreement.row import Line, Row, around
from tests.suites.rows import keep


def said(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def console() -> Console:
    return Console(file=io.StringIO(), width=160)


def test_rows_are_measured_kept_and_shown_with_the_reason_of_a_miss(tmp_path: Path) -> None:
    def measure(reduced: bool, say: object) -> list[Line]:
        return [around("speed", 4.0, 2.0, 0.25, "nobody knows", "x"), Line("told", "1", 1.0, unit="s")]

    def nothing(reduced: bool, say: object) -> list[Line]:
        raise WarmrouteError("no data here")

    rows = [Row("a", "an experiment", measure, 1, 1), Row("b", "another", nothing, 1, 1)]
    found = rows_table.run(rows, True, False, console(), tmp_path)
    out = console()
    rows_table.show(found, out)
    for text in ("an experiment", "speed", "3x - 5x", "2x", "missed", "nobody knows", "b is left out: no data here",
                 "0 of 1 bars held"):  # fmt: skip
        assert text in said(out)


def test_a_broken_off_run_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    seen: list[str] = []

    def measure(reduced: bool, say: object) -> list[Line]:
        seen.append("measured")
        return [Line("x", "1", 1.0, 0.5)]

    row = Row("a", "an experiment", measure, 1, 1)
    first = rows_table.run([row], True, True, console(), tmp_path)
    assert rows_table.run([row], True, True, console(), tmp_path) == first
    assert seen == ["measured"]
    assert rows_table.run([row], False, True, console(), tmp_path)[0].reduced is False  # another size is another run
    assert len(seen) == 2


SCORES = [
    Score("codex/8/n4/nopool", "warm", 5.0, 0.5),
    Score("codex/8/n4/nopool", "random", 4.0, 2.0),
    Score("codex/12/n4/nopool", "warm", 4.0, 1.0),
    Score("codex/12/n4/nopool", "random", 4.0, 0.7),
    Score("codex/24/n4/nopool", "warm", 1.0, 8.0),
    Score("codex/24/n4/nopool", "random", 2.0, 4.0),
]
THRASH = {"codex/24/n4/nopool"}
FOUND = regrets(SCORES)


def test_thrash_is_shown_apart_from_the_verdict() -> None:
    out = console()
    regret_tables.show([score for score in SCORES if "/12/" not in score.cell], THRASH, "warm", out)
    assert "warm: 100.0% of 1 cells within 3% / 10% (bar 95%: met)" in said(out)
    assert "0 beyond 5% / 20% (bar 0: met)" in said(out)
    assert "only admission helps" in said(out)
    assert "best sum of normalised throughput: warm; best geometric mean of p90: warm (bar: warm in both: met)" in said(
        out
    )


def test_each_cell_says_whether_the_bar_is_met_and_who_is_best() -> None:
    out = console()
    regret_tables.show(SCORES, THRASH, "warm", out)
    rows = [line.split() for line in said(out).splitlines() if line.strip().startswith("codex/")]
    first, second = ["codex/8/n4/nopool", "codex/12/n4/nopool"]
    assert [row[0] for row in rows] == [first, second, second, first]  # in their order, then the worst first
    assert rows[0][-1] == "met"
    assert rows[1] == [second, "4.00", "4.00", "random", "0.0%", "1.000", "0.700", "random", "+42.9%", "missed"]
    assert "1 beyond 5% / 20% (bar 0: missed): codex/12/n4/nopool" in said(out)
    assert "warm: 50.0% of 2 cells within 3% / 10% (bar 95%: missed)" in said(out)


def test_an_arm_that_was_not_measured_is_said_to_be() -> None:
    assert regret_tables.verdict(FOUND, "nobody") == "nobody was not measured"


def test_trouble_is_marked_held_or_missed() -> None:
    out = console()
    out.print(regret_tables.troubled_table([Regret("a/lost", "warm", 0.2, 0.0)], TROUBLED, "warm"))
    assert "missed" in said(out)


def test_the_chart_is_drawn(tmp_path: Path) -> None:
    file = tmp_path / "charts" / "regret.png"
    regret_chart.draw(FOUND, [Cell("codex", 8, 4, 0), Cell("codex", 24, 4, 0)], file)
    assert file.read_bytes()[:4] == b"\x89PNG"
    nothing = tmp_path / "nothing.png"
    regret_chart.draw(FOUND, [], nothing)
    assert not nothing.exists()


def test_what_was_left_out_is_measured_again(tmp_path: Path) -> None:
    keep(Found("a", "x", True, code_digest(), 1.0, left_out="no data"), tmp_path / "a.json")
    assert kept("a", True, tmp_path) is None
    (tmp_path / "a.json").write_text("{}")
    assert kept("a", True, tmp_path) is None
