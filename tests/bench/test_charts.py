"""The benchmark's charts: what is drawn, and that it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.charts import draw, share_of_bar
from tests.bench.figures import Bar, Line, beside
from tests.bench.results import Effort, Outcome


def outcome(*lines: Line) -> Outcome:
    return Outcome("row", "title", Effort(), "2026-11-21 13:00+00:00", 1.0, "a machine", 0.0, list(lines))


@pytest.mark.parametrize(
    ("line", "share"),
    [
        (Line("x", "ms", [5.0], bar=Bar(10.0)), 0.5),
        (Line("x", "ms", [5.0], bar=Bar(10.0, sense=">=")), 2.0),  # wanted twice as much
        (Line("x", "ms", [0.0], bar=Bar(10.0)), 0.01),  # a logarithmic axis has no 0
        (Line("x", "ms", [0.0], bar=Bar(10.0, sense=">=")), 100.0),
        (Line("x", "", [3.0], bar=Bar(0.0)), None),
        (Line("x", "ms", [3.0]), None),
    ],
)
def test_below_one_is_met_whatever_the_sense(line: Line, share: float | None) -> None:
    assert share_of_bar(line) == share


def test_both_charts_are_drawn(tmp_path: Path) -> None:
    draw([outcome(beside("CPU", "us", [3.0], [2.0], "peer", Bar(1.0, "ratio")), Line("p", "ms", [9.0]))], tmp_path)
    for name in ("bench-bars.png", "bench-peers.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_what_has_neither_bar_nor_peer_makes_no_chart(tmp_path: Path) -> None:
    draw([outcome(Line("p", "ms", [9.0]), beside("idle", "%", [3.0], [0.0], "peer"))], tmp_path)
    assert list(tmp_path.iterdir()) == []
