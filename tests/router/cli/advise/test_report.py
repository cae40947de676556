"""The report of advice: sizes, tables, sentences, and a chart with a line per fleet."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from router.cli.advise.report import LADDER_GB, AdviceReport, draw, in_gb, make_chart, parse_sizes_gb
from router.cli.terminal.output import render
from router.errors import ConfigError
from router.lab.engine_profile import EngineProfile
from router.lab.simulator.scenario import LinkSpeed
from router.lab.simulator.sizing import Placement, SizingAdvice, SizingCell

PROFILE = EngineProfile(
    name="plain",
    kv_tokens=1000,
    kv_bytes_per_token=1e6,  # 1,000 tokens are a GB
    us_per_token=1.0,
    ns_per_pair=0.0,
    us_per_decode=0.0,
    weights_ms=0.0,
    ns_per_context_token=0.0,
)


def a_cell(instances: int, placement: Placement, gb: float, hits: int, prefill_ms: float) -> SizingCell:
    return SizingCell(instances, placement, round(gb * 1000), 10, 1000, hits, 0, prefill_ms / 1e3)


CELLS = (
    a_cell(1, "by prefix", 0, 100, 500),
    a_cell(1, "by prefix", 200, 110, 490),
    a_cell(1, "by prefix", 400, 183, 412),
    a_cell(1, "by prefix", 900, 190, 400),
    a_cell(2, "by prefix", 0, 300, 300),
    a_cell(2, "by prefix", 200, 300, 300),
    a_cell(2, "by prefix", 400, 300, 300),
    a_cell(2, "by prefix", 900, 300, 300),
    a_cell(2, "at random", 0, 250, 356),
    a_cell(2, "at random", 200, 260, 350),
    a_cell(2, "at random", 400, 260, 350),
    a_cell(2, "at random", 900, 260, 350),
)


def some(
    cells: tuple[SizingCell, ...] = CELLS, working_set_gb: float = 350, *, whole_ladder: bool = True
) -> AdviceReport:
    return AdviceReport(
        "some", PROFILE, LinkSpeed(1e5), SizingAdvice(cells, round(1000 * working_set_gb)), whole_ladder=whole_ladder
    )


def printed(report: AdviceReport) -> str:
    console = Console(file=io.StringIO(), width=120)
    for grid in report.grids():
        console.print(render(grid))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_sentences() -> None:
    assert some().sentences() == [
        "1 instance: 200 GB more pool (200 -> 400 GB): +7.3 points of hits, mean prefill 490 -> 412 ms",
        "2 instances: none of these pools adds hits to those of the instances' own caches",
        "2 instances, no pool: placed by prefix, not at random: +5.0 points of hits, mean prefill 356 -> 300 ms",
    ]


def test_tables_have_a_row_per_fleet_and_a_column_per_pool() -> None:
    told = printed(some())
    assert "no pool  200 GB  400 GB  900 GB" in told
    assert ["1", "10.0", "11.0", "18.3", "19.0"] in [line.split() for line in told.splitlines()]
    assert ["2", "at", "random", "356", "350", "350", "350"] in [line.split() for line in told.splitlines()]
    assert some().title() == "some: 10 requests on plain; all different blocks are 350 GB"


def test_of_a_ladder_what_is_of_interest() -> None:
    """From a hundredth of all blocks to the first size that holds them all; what was asked for stays."""
    assert list(map(len, some(whole_ladder=False).fleets.values())) == [3, 3, 3]
    assert list(map(len, some(working_set_gb=30_000, whole_ladder=False).fleets.values())) == [3, 3, 3]
    assert list(map(len, some(working_set_gb=500, whole_ladder=False).fleets.values())) == [4, 4, 4]


def test_sizes() -> None:
    assert parse_sizes_gb("400, 200") == [0, 200, 400]
    assert parse_sizes_gb("0,0.5") == [0, 0.5]
    assert parse_sizes_gb(None) == [0, *LADDER_GB]
    assert sorted(LADDER_GB) == LADDER_GB
    for wrong in ("-1", "many", "", "inf"):
        with pytest.raises(ConfigError, match="--pool-gb"):
            parse_sizes_gb(wrong)


def test_gb_are_short() -> None:
    assert [in_gb(gb) for gb in (0, 0.002, 0.5, 7.25, 50, 20_000)] == ["0", "0.002", "0.5", "7.2", "50", "20,000"]


def test_json() -> None:
    told = json.loads(json.dumps(some().as_json()))
    assert (told["profile"], told["working_set_gb"], len(told["cells"])) == ("plain", 350, 12)
    assert told["cells"][2] | {"pool_gb": 400, "hit_share": 0.183, "instances": 1} == told["cells"][2]
    assert told["sentences"] == some().sentences()


def test_kv_bytes_turn_tokens_into_gb() -> None:
    bigger = AdviceReport(
        "some",
        replace(PROFILE, kv_bytes_per_token=2e6),
        LinkSpeed(1e5),
        SizingAdvice(CELLS, 350_000),
        whole_ladder=True,
    )
    assert bigger.title().endswith("700 GB")


def test_a_line_per_fleet() -> None:
    hits, times, *_ = make_chart(some()).axes
    assert [line.get_label() for line in hits.get_lines()] == ["1", "2, by prefix", "2, at random"]
    assert list(hits.get_lines()[0].get_ydata()) == [10.0, 11.0, 18.3, 19.0]
    assert list(times.get_lines()[2].get_ydata()) == [356, 350, 350, 350]
    assert [label.get_text() for label in times.get_xticklabels()] == ["none", "200", "400", "900"]


def test_a_file(tmp_path: Path) -> None:
    draw(some(), tmp_path / "new" / "advice.png")
    assert (tmp_path / "new" / "advice.png").read_bytes().startswith(b"\x89PNG")
