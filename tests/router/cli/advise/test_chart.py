"""The chart of advice: a line per fleet in both panels, named sizes, and a file that is a PNG."""

from __future__ import annotations

from pathlib import Path

from router.cli.advise.chart import draw, make_chart
from tests.router.cli.advise.test_report import some


def test_a_line_per_fleet() -> None:
    hits, times, *_ = make_chart(some()).axes
    assert [line.get_label() for line in hits.get_lines()] == ["1", "2, by prefix", "2, at random"]
    assert list(hits.get_lines()[0].get_ydata()) == [10.0, 11.0, 18.3, 19.0]
    assert list(times.get_lines()[2].get_ydata()) == [356, 350, 350, 350]
    assert [label.get_text() for label in times.get_xticklabels()] == ["none", "200", "400", "900"]


def test_a_file(tmp_path: Path) -> None:
    draw(some(), tmp_path / "new" / "advice.png")
    assert (tmp_path / "new" / "advice.png").read_bytes().startswith(b"\x89PNG")
