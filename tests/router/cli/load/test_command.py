"""`warmroute load` against an endpoint: its report, and its chart, drawn whatever is in the report."""

from __future__ import annotations

import asyncio
import io
import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from router.cli.load.command import (
    COLOURS,
    REASONS,
    LoadRequest,
    NoAnswers,
    load_chart,
    load_remarks,
    load_table,
    run_load,
)
from router.cli.terminal.output import render
from router.errors import ConfigError, WarmrouteError
from router.lab.loadgen.calibration import EndpointUnavailable
from router.lab.loadgen.report import LoadReport
from router.lab.workloads.model import Workload
from router.lab.workloads.presets import CODEX, GROUPS
from tests.fakes.engines import engine, eventually
from tests.router.lab.loadgen.reports import answered, failed, loaded

NOBODY = "http://127.0.0.1:1"
AGENTS = CODEX.scale(tokens=0.01, sessions=4 / CODEX.sessions, turns=3 / CODEX.turns.median, think=0.001).workload(3)
MANY = [answered(target=f"engine-{number}/0", sent_s=float(number)) for number in range(2 * len(COLOURS))]


def console() -> Console:
    return Console(file=io.StringIO(), width=160)


def printed(told: Console) -> str:
    assert isinstance(told.file, io.StringIO)
    return told.file.getvalue()


def asked(url: str, **changes: Any) -> LoadRequest:
    return LoadRequest(**({"url": url, "at_once": 3} | changes))


async def test_two_processes_one_report(tmp_path: Path) -> None:
    told, written, drawn = console(), tmp_path / "load.json", tmp_path / "load.png"
    async with engine(model="the-model", decode_ms_per_token=0.5) as fake:
        assert await run_load(asked(fake.url, json=written, chart=drawn), AGENTS, console=told)
    report = json.loads(written.read_text())
    assert (report["model"], report["processes"], report["prompts"]) == ("the-model", 2, "text")
    assert report["workload"] == {"name": "codex", "seed": 3, "sessions": 4, "turns": AGENTS.turns}
    assert len(report["requests"]) == report["figures"]["requests"] == AGENTS.turns
    assert report["failures"] == {}
    assert 0 < report["figures"]["hit_share"] < 1
    assert report["client"]["output_tokens_share"] == 1.0
    # a template's tokens weigh much in prompts of 120; words are calibrated, so the rest is near
    assert 0.95 < report["client"]["prompt_tokens_share"] < 1.4
    assert drawn.read_bytes().startswith(b"\x89PNG")
    assert f"{AGENTS.turns} / 0 / 0" in printed(told)
    assert f"written: {written}" in printed(told)


async def test_lengths_come_near_the_workloads_with_another_seed_too() -> None:
    """Prompts of 1,440 tokens, of which the template's are about 10."""
    few = GROUPS.scale(tokens=0.2).workload(1)
    few = few._replace(sessions=few.sessions[:6])
    for seed in (1, 2):
        told = console()
        async with engine(model="m") as fake:
            assert await run_load(asked(fake.url, at_once=None, text_seed=seed, processes=1), few, console=told)
            calls = fake.seen("/v1/chat/completions")
        assert len(calls) == 6 + 2  # and two that calibrate
        (line,) = [line for line in printed(told).splitlines() if "real / requested" in line]
        real = float(line.split()[-3].rstrip("%"))
        assert real == pytest.approx(100, abs=4)


async def test_ids_are_exact_and_nothing_is_calibrated(tmp_path: Path) -> None:
    written = tmp_path / "load.json"
    async with engine(model="m") as fake:
        assert await run_load(asked(fake.url, prompts="ids", json=written), AGENTS, console=console())
        assert fake.seen("/v1/chat/completions") == []
    report = json.loads(written.read_text())
    assert report["tokens_per_word"] is None
    assert report["client"]["prompt_tokens_share"] == 1.0


async def test_an_endpoint_that_is_down_is_one_line() -> None:
    with pytest.raises(EndpointUnavailable, match="is it running there"):
        await run_load(asked(NOBODY), AGENTS, console=console())
    with pytest.raises(EndpointUnavailable, match="the first request failed"):
        await run_load(asked(NOBODY, model="m"), AGENTS, console=console())


async def test_where_nothing_is_answered_the_report_says_why_and_then_it_fails() -> None:
    told = console()
    with pytest.raises(NoAnswers):
        await run_load(asked(NOBODY, model="m", prompts="ids"), AGENTS, console=told)
    assert "0 / 0 / 4" in printed(told)
    assert "failed 4x: no answer: connection refused" in printed(told)


async def test_an_endpoint_that_dies_midway_is_counted_by_reason(tmp_path: Path) -> None:
    told, written = console(), tmp_path / "load.json"
    async with engine(model="m", decode_ms_per_token=2.0) as fake:
        running = asyncio.ensure_future(run_load(asked(fake.url, json=written), many(), console=told))
        await eventually(lambda: len(fake.seen("/v1/chat/completions")) > 6, 30.0)
    assert await asyncio.wait_for(running, 60)
    report = json.loads(written.read_text())
    assert report["figures"]["requests"] > 0
    assert report["figures"]["failed"] > 0
    assert sum(report["failures"].values()) == report["figures"]["failed"]
    assert any("no answer" in reason or "broke off" in reason for reason in report["failures"])
    assert "failed " in printed(told)


async def test_interrupted_it_tells_what_was_done(tmp_path: Path) -> None:
    told, written = console(), tmp_path / "load.json"
    async with engine(model="m", decode_ms_per_token=5.0) as fake:
        running = asyncio.ensure_future(run_load(asked(fake.url, json=written), many(), console=told))
        await eventually(lambda: running.done() or len(fake.seen("/v1/chat/completions")) > 8, 30.0)
        running.cancel()
        assert await running is False
    report = json.loads(written.read_text())
    assert report["interrupted"]
    assert 0 < report["figures"]["requests"] < many().turns
    assert "interrupted" in printed(told)


async def test_a_chart_of_no_known_kind_is_refused_before_anything_is_sent() -> None:
    async with engine(model="m") as fake:
        with pytest.raises(ConfigError, match=r"\.png or \.svg"):
            await run_load(asked(fake.url, chart=Path("load.gif")), AGENTS, console=console())
        assert fake.seen("/v1/chat/completions") == []


def many() -> Workload:
    small = CODEX.scale(tokens=0.01, sessions=40 / CODEX.sessions, turns=3 / CODEX.turns.median, think=0.001)
    return small.workload(4)


def print_table(some: LoadReport) -> str:
    console = Console(width=160, file=StringIO())
    console.print(render(load_table(some)))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_the_table_has_every_figure() -> None:
    text = print_table(loaded(answered(), answered(target="b/0", ttft_s=0.4, duration_s=2.2), failed(429, "later")))
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
    assert "at ?" not in print_table(loaded(answered(target=None)))
    assert "at ?" in print_table(loaded(answered(target=None), answered()))


def test_nothing_measured_is_a_dash() -> None:
    assert "- / - / - / -" in print_table(loaded())


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
