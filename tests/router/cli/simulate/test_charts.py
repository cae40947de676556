"""Charts: what they are drawn from is on them, and the same figures give the same bytes."""

from __future__ import annotations

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from router.cli.simulate.charts import COLOURS, OTHER, TITLE, PlotLine, line_chart, make_charts, png, svg
from router.lab.simulator.scenario import Trouble
from router.lab.sweep.cells import FleetOption, LoadLevel
from router.lab.sweep.comparison import CapacityTable, ComparisonTable, FigureValue, compare
from tests.router.lab.sweep.cells import a_cell, a_result


def tables(loads: tuple[float, ...] = (0.6, 0.9), sizes: tuple[int, ...] = (4, 8)) -> list[ComparisonTable]:
    """TTFT is the load times ten for `warm`, twice that for `random`; hits are a percent per instance."""
    return compare(
        a_result(
            a_cell(policy, instances=size, load=LoadLevel("rho", load)),
            ttft_p90_s=load * 10 * factor,
            local_share=size / 100,
            good_per_s=load / factor,
        )
        for size in sizes
        for load in loads
        for policy, factor in (("warm", 1), ("random", 2))
    )


def shown(figure: Figure) -> list[Axes]:
    return [axes for axes in figure.axes if axes.get_visible()]


def points(axes: Axes) -> dict[str, list[tuple[float, float]]]:
    return {
        str(line.get_label()): [(float(x), float(y)) for x, y in zip(*line.get_data(), strict=True)]
        for line in axes.get_lines()
    }


def words(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_ttft_over_load_a_panel_per_fleet() -> None:
    small, large = shown(make_charts(tables(), [])["ttft"])
    assert [axes.get_title(loc="left") for axes in (small, large)] == ["4 instances, no pool", "8 instances, no pool"]
    assert points(small) == {"warm": [(0.6, 6.0), (0.9, 9.0)], "random": [(0.6, 12.0), (0.9, 18.0)]}
    assert small.get_ylabel() == "seconds"


def test_hits_over_fleet_sizes_a_panel_per_load() -> None:
    panels = shown(make_charts(tables(), [])["hits"])
    assert len(panels) == 2
    assert points(panels[0])["warm"] == [(4.0, 4.0), (8.0, 8.0)]


def test_what_a_panel_is_of_stays_above_it() -> None:
    cell = a_cell(pool="40000", trouble=("a-trouble-with-quite-a-long-name", Trouble()))
    (panel,) = shown(make_charts(compare([a_result(cell)]), [])["hits"])
    lines = panel.get_title(loc="left").split("\n")
    assert " ".join(lines) == f"{cell.fleet}, rho 0.9 (4 requests/s)"
    assert max(map(len, lines)) <= TITLE


def test_one_point_is_a_bar() -> None:
    drawn = make_charts(tables((0.9,), (8,)), [])
    (ttft,), (hits,) = shown(drawn["ttft"]), shown(drawn["hits"])
    assert words(ttft) == ["9.00", "18.00"]
    assert words(hits) == ["8.0", "8.0"]


def test_served_well_at_the_best_load() -> None:
    panel = shown(make_charts(tables(), [])["capacity"])[0]
    assert words(panel) == ["0.90 at 0.9", "0.45 at 0.9"]


def test_capacities_that_were_searched() -> None:
    found = [
        CapacityTable("a", FleetOption(4), "sessions", FigureValue(12.0, None), None, None, bounded=False),
        CapacityTable("b", FleetOption(4), "sessions", None, None, None, bounded=True),
    ]
    drawn = make_charts([], found)
    assert list(drawn) == ["capacity"]
    (panel,) = shown(drawn["capacity"])
    assert words(panel) == ["at least 12.00", "none"]
    assert panel.get_xlabel() == "sessions per instance"


def test_nothing_found_nothing_drawn() -> None:
    assert make_charts([], []) == {}


def test_more_policies_than_colours_go_grey() -> None:
    lines = [
        PlotLine(f"p{i}", ((1.0, FigureValue(1.0, None)), (2.0, FigureValue(2.0, None))))
        for i in range(len(COLOURS) + 2)
    ]
    (axes,) = shown(line_chart("t", "s", "load", {"panel": lines}))
    colours = {str(line.get_label()): line.get_color() for line in axes.get_lines()}
    assert colours["p0"] == COLOURS[0]
    assert colours[f"p{len(COLOURS)}"] == colours[f"p{len(COLOURS) + 1}"] == OTHER[0]


@pytest.mark.parametrize("name", ["ttft", "hits", "capacity"])
def test_the_same_bytes_again(name: str) -> None:
    first, again = (make_charts(tables(), [])[name] for _ in range(2))
    assert svg(first) == svg(again)
    assert png(first) == png(again)
