"""What is told, as rows of text; on the terminal; on the report."""

from __future__ import annotations

import io
from html.parser import HTMLParser
from math import inf

import pytest
from rich.console import Console

from router.cli.simulate import report
from router.cli.simulate.report import FaultRemark, describe_trouble, fault_remarks
from router.cli.terminal.output import Grid, GridEntry, render
from router.lab.simulator.outcome import ServiceLimits
from router.lab.simulator.scenario import InstanceFailure, Trouble
from router.lab.sweep.cells import CellFailure, FleetOption, LoadLevel
from router.lab.sweep.comparison import CapacityTable, FigureValue, compare, compare_sizes
from tests.router.lab.sweep.cells import a_cell, a_result


def a_grid() -> Grid:
    slow, fast = a_result(a_cell("slow"), ttft_p90_s=2.0, ttft_mean_s=None), a_result(a_cell("<fast>"), ttft_p90_s=1.25)
    (table,) = compare([slow, fast])
    return report.of_comparison(table)


def test_a_row_per_policy_the_best_known_and_the_missing_shown() -> None:
    grid = a_grid()
    assert grid.title == "8 instances, no pool, rho 0.9 (4 requests/s)"
    told = {head: [row[number] for row in grid.rows] for number, head in enumerate(grid.heads)}
    assert told["policy"] == [GridEntry("slow"), GridEntry("<fast>")]
    assert told["p90"] == [GridEntry("2.00"), GridEntry("1.25", best=True)]
    assert told["TTFT s mean"] == [GridEntry("-"), GridEntry("1.00")]
    assert "shed" not in told


def test_seeds_bring_their_spread_to_the_headline_figures_only() -> None:
    (table,) = compare([a_result(a_cell(seed=1), ttft_p90_s=1.0), a_result(a_cell(seed=2), ttft_p90_s=3.0)])
    grid = report.of_comparison(table)
    told = dict(zip(grid.heads, grid.rows[0], strict=True))
    assert told["p90"].text == "2.00 ±1.00"
    assert told["p99"].text == "1.00"


def test_capacities_a_grid_per_fleet() -> None:
    most, less = FigureValue(6.0, 0.5), FigureValue(4.0, None)
    found = [
        CapacityTable("a", FleetOption(4), "rate", most, FigureValue(5.5, 0.1), FigureValue(0.91, 0.0), bounded=False),
        CapacityTable(
            "b", FleetOption(4), "rate", less, FigureValue(3.9, None), FigureValue(0.905, None), bounded=True
        ),
        CapacityTable("a", FleetOption(8), "rate", None, None, None, bounded=True),
    ]
    small, large = report.of_capacities(found)
    assert small.title == "Capacity of 4 instances, no pool"
    assert [row[1] for row in small.rows] == [GridEntry("at least 6.00 ±0.50", best=True), GridEntry("4.00")]
    assert [row[3].text for row in small.rows] == ["91.0%", "90.5%"]
    assert [entry.text for entry in large.rows[0]] == ["a", "none", "none", "-"]


@pytest.mark.parametrize(
    ("shares", "needed"),
    [
        ((0.9, 0.95, 1.0), "at most 2"),
        ((0.5, 0.9, 1.0), "3"),
        ((0.95, 0.5, 0.9), "4"),  # by chance well served: not to be relied on
        ((0.1, 0.5, 0.8), "over 4"),
        ((0.5, 0.9, None), "over 4"),
    ],
)
def test_the_smallest_fleet_of_those_that_serve_the_same_requests_well(
    shares: tuple[float | None, ...], needed: str
) -> None:
    as_recorded = LoadLevel("recorded", 3.0)
    cells = [a_cell(instances=2 + place, load=as_recorded) for place in range(3)]
    tables = compare(a_result(cell, good_share=share) for cell, share in zip(cells, shares, strict=True))
    (grid,) = report.of_sizes(compare_sizes(tables), 0.9, ServiceLimits(2.0, 0.1))
    assert grid.title == "Requests within 2 s to the first token and 0.1 s per later one, by instances"
    assert grid.heads == ("policy", "fleet and load", "2", "3", "4", "instances for 90%")
    assert grid.rows[0][1].text == "no pool, 3 requests/s as recorded"
    assert grid.rows[0][-1].text == needed


def test_fleets_with_different_requests_are_not_compared_by_their_size() -> None:
    tables = compare(a_result(a_cell(instances=size)) for size in (2, 4))
    assert compare_sizes(tables) == []
    assert compare_sizes(compare([a_result(a_cell(load=LoadLevel("rate", 3.0)))])) == []


def test_what_went_wrong_is_said() -> None:
    failed = [CellFailure("warm, 8 instances", "MemoryError")]
    said = report.remarks(failed, interrupted=True, seeds=3)
    assert said[0] == "warm, 8 instances failed: MemoryError"
    assert "3 seeds" in said[1]
    assert said[2].startswith("Interrupted")
    assert report.remarks([], interrupted=False, seeds=1) == []


def test_the_terminal_marks_the_best_with_a_star() -> None:
    console = Console(file=io.StringIO(), width=200)
    console.print(render(a_grid()))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert any("<fast>" in line and "1.25*" in line for line in lines)
    assert any("slow" in line and "2.00 " in line and "*" not in line for line in lines)


class Outline(HTMLParser):
    """Every tag with its attributes, and all text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_holds_all_and_needs_nothing_from_elsewhere() -> None:
    told = report.ResultPage("warmroute simulate -p '<fast>'", ("Load: 2.",), (a_grid(),), (), ("One & two.",))
    outline = Outline()
    outline.feed(report.html(told, ['<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"><path/></svg>']))
    assert {"warmroute simulate -p '<fast>'", "Load: 2.", "One & two."} <= set(outline.text.splitlines())
    assert "1.25" in outline.text
    assert [attributes for tag, attributes in outline.tags if tag == "td"].count({"class": "best"}) == 1
    kinds = [tag for tag, _ in outline.tags]
    assert kinds.count("svg") == 1
    assert not {"script", "link", "img", "iframe"} & set(kinds)
    assert not any(name in attributes for _, attributes in outline.tags for name in ("src", "href"))


def test_loads_are_named_with_their_unit() -> None:
    assert [str(LoadLevel("rate", 7.5)), str(LoadLevel("rho", 0.9)), str(LoadLevel("sessions", 16))] == [
        "7.5 requests/s",
        "rho 0.9",
        "16 sessions per instance",
    ]


DIES = ("dies", Trouble(failures=(InstanceFailure("down", 0, 60.0),), events_lost=0.05))


def test_each_thing_is_said_with_its_time() -> None:
    trouble = Trouble(
        failures=(InstanceFailure("down", 3, 300.0, 420.0), InstanceFailure("slow", 1, 0.0, factor=1.5)),
        events_lost=0.05,
        pool_away=((200.0, 260.0), (500.0, inf)),
        router_starts_s=60.0,
    )
    assert describe_trouble(trouble) == [
        FaultRemark(300.0, "instance 3 is down from 300 s to 420 s"),
        FaultRemark(0.0, "instance 1 takes 1.5 times as long per step all the time"),
        FaultRemark(0.0, "5 % of all event batches are lost"),
        FaultRemark(200.0, "the pool is away from 200 s to 260 s"),
        FaultRemark(500.0, "the pool is away from 500 s on"),
        FaultRemark(0.0, "the router starts at 60 s, before that requests go round robin"),
    ]


def test_a_line_per_trouble_and_none_for_none() -> None:
    cells = [a_cell(policy, trouble=trouble) for trouble in (("off", Trouble()), DIES) for policy in ("a", "b")]
    assert fault_remarks(cells, [a_result(cell) for cell in cells]) == [
        "Trouble dies: instance 0 is down from 60 s on; 5 % of all event batches are lost."
    ]


def test_what_comes_after_the_end_is_named() -> None:
    short, long = (a_result(a_cell(trouble=DIES))._replace(took_s=took_s) for took_s in (59.0, 61.0))
    told = fault_remarks([short.cell, long.cell], [short, long])
    assert told[1:] == ["Too late for 1 of its 2 cells: instance 0 is down from 60 s on."]
