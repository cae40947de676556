"""What all charts share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from router.cli.terminal.drawing import bare, canvas, plain_numbers, require, require_for, save
from router.errors import ConfigError, ExtraMissing, WarmrouteError


@pytest.mark.parametrize(("name", "begins"), [("a.png", b"\x89PNG"), ("deep/er/a.svg", b"<?xml")])
def test_a_chart_is_in_the_format_of_its_name(tmp_path: Path, name: str, begins: bytes) -> None:
    require_for(tmp_path / name)
    figure = canvas(2.0, 1.0)
    figure.add_subplot().plot([1, 2])
    save(figure, tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(begins)


def test_a_name_without_a_format_is_refused_before_anything_is_done() -> None:
    with pytest.raises(ConfigError, match=r"--chart: chart\.pdf: the name must end in \.png or \.svg"):
        require_for(Path("chart.pdf"))


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for asked in (require, lambda: require_for(Path("a.svg"))):
        with pytest.raises(ExtraMissing, match=r"pip install 'warmroute\[lab\]'"):
            asked()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WarmrouteError, match=r"--chart: .*a\.png: "):
        save(canvas(1.0, 1.0), tmp_path / "file" / "a.png")


def test_numbers_along_a_logarithmic_axis_are_plain() -> None:
    axes = canvas(6.0, 1.0).add_subplot()
    bare(axes, 8, "x")
    axes.set_xscale("log")
    axes.set_xlim(0.4, 30)
    plain_numbers(axes.xaxis)
    axes.figure.draw_without_rendering()
    shown = [label.get_text() for label in axes.get_xticklabels() if 0.4 <= label.get_position()[0] <= 30]
    assert shown == ["0.5", "1", "2", "5", "10", "20"]
    assert not any(axes.spines[side].get_visible() for side in ("top", "right"))
    assert all(tick.tick1line.get_markersize() == 0 for tick in (*axes.xaxis.majorTicks, *axes.xaxis.minorTicks))
