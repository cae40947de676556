"""The load's chart is drawn whatever is in it, as long as one request was answered."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.cli.load.chart import COLOURS, load_chart
from router.errors import WarmrouteError
from router.testbed.loadgen.report import LoadReport
from tests.router.testbed.bench.rows import answered, failed, loaded

MANY = [answered(target=f"engine-{number}/0", sent_s=float(number)) for number in range(2 * len(COLOURS))]


@pytest.mark.parametrize(
    "some",
    [loaded(answered()), loaded(answered(target=None), failed(None, "gone")), loaded(*MANY)],
    ids=["one", "without targets", "more targets than colours"],
)
def test_a_png_is_drawn(some: LoadReport, tmp_path: Path) -> None:
    load_chart(some, "warmroute 0", "now", tmp_path / "deep" / "load.png")
    assert (tmp_path / "deep" / "load.png").read_bytes().startswith(b"\x89PNG")


def test_an_svg_names_the_busiest_targets_and_failures(tmp_path: Path) -> None:
    from matplotlib import rc_context

    with rc_context({"svg.fonttype": "none"}):
        load_chart(loaded(*MANY, MANY[0], failed(503, "no")), "warmroute 0", "now", tmp_path / "load.svg")
    drawn = (tmp_path / "load.svg").read_text()
    assert "engine-0/0" in drawn
    assert ">others<" in drawn
    assert ">failed<" in drawn


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WarmrouteError, match="--chart"):
        load_chart(loaded(answered()), "warmroute 0", "now", tmp_path / "file" / "load.png")
