"""`warmroute load` as people run it, through a router: its report by target, its bounds, Ctrl-C, and its exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.e2e.conftest import ROOT, Router
from tests.fakes.engines import engine, eventually

SMALL = ("--preset", "codex", "--scale", "0.01", "--turns", "0.1", "--think", "0.001")


class Said(NamedTuple):
    code: int
    out: str
    err: str


async def start(*words: str | Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "router", "load", *map(str, words)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env=os.environ | {"NO_COLOR": "1", "COLUMNS": "160"},
    )


async def said(process: asyncio.subprocess.Process) -> Said:
    out, err = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode is not None
    return Said(process.returncode, out.decode(), err.decode())


async def load(*words: str | Path) -> Said:
    return await said(await start(*words))


async def test_a_closed_loop_through_the_router_tells_hits_by_target(router: Any, tmp_path: Path) -> None:
    file = tmp_path / "load.json"
    async with engine(model="warm-tiny") as a, engine(model="warm-tiny") as b, router([a, b]) as r:
        told = await load("--url", r.url, *SMALL, "--sessions", "6", "--agents", "3", "--json", file)
        assert told.code == 0, told.err
        report = json.loads(file.read_text())
        targets = {target: at["requests"] for target, at in report["targets"].items()}
        assert set(targets) == {target for target in targets if target in told.out}
        assert sum(targets.values()) == report["workload"]["turns"] == report["figures"]["requests"]
        assert set(targets) <= {f"{name}/0" for name in await r.instances()}
        records = await r.records(1000)
        assert len(records) == report["workload"]["turns"] + 2  # and two that calibrated
        assert sum(record["cached_tokens"] or 0 for record in records) >= sum(
            request["cached_tokens"] for request in report["requests"]
        )
    # all but what is new is found again: a router by caches sends each session where it was
    assert report["figures"]["hit_share"] > 0.3
    assert await idle(r)


async def idle(r: Router) -> bool:
    await eventually(r.idle)
    return True


async def test_an_open_loop_by_rate_requests_and_time(tmp_path: Path) -> None:
    file = tmp_path / "load.json"
    size = ("--preset", "tools", "--scale", "0.01", "--requests", "60", "--json", file)
    async with engine(model="m") as fake:
        assert (await load("--url", fake.url, *size, "--rate", "40")).code == 0
        whole = json.loads(file.read_text())
        assert (await load("--url", fake.url, *size, "--rate", "5", "--duration", "3")).code == 0
        part = json.loads(file.read_text())
    assert (whole["loop"], whole["figures"]["requests"]) == ("open loop", 60)
    due_s = sorted(request["sent_s"] - request["late_s"] for request in whole["requests"])
    assert 60 / (due_s[-1] - due_s[0]) == pytest.approx(40, rel=0.5)  # 60 draws of a Poisson process: 13 % is one sigma
    assert 1 <= part["figures"]["requests"] < 60
    assert not part["interrupted"]


async def test_a_trace_and_a_closed_loop_at_a_rate(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    row = {"input_length": 700, "output_length": 4}
    rows = [row | {"timestamp": 20 * number, "hash_ids": [1, 2 + number % 2]} for number in range(6)]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    file = tmp_path / "load.json"
    async with engine(model="m") as fake:
        told = await load("--url", fake.url, "--workload", trace, "--json", file)
        assert told.code == 0, told.err
        report = json.loads(file.read_text())
        assert (report["figures"]["requests"], report["workload"]["name"]) == (6, "trace")
        assert report["figures"]["hit_share"] > 0.5  # two prompts, three times each
        told = await load("--url", fake.url, *SMALL, "--sessions", "3", "--rate", "50", "--json", file)
        assert told.code == 0, told.err
    assert json.loads(file.read_text())["loop"] == "open loop"


async def test_ctrl_c_ends_every_process_and_reports_what_there_is(tmp_path: Path) -> None:
    file = tmp_path / "load.json"
    async with engine(model="m", decode_ms_per_token=5.0) as fake:
        process = await start("--url", fake.url, *SMALL, "--json", file, "--processes", "2")
        await eventually(lambda: len(fake.seen("/v1/chat/completions")) > 30, 60.0)
        clients = children(process.pid)
        assert len(clients) == 2
        process.send_signal(signal.SIGINT)
        told = await said(process)
    assert told.code == 130
    assert "interrupted" in told.out
    assert json.loads(file.read_text())["figures"]["requests"] > 0
    assert "Traceback" not in told.err
    await eventually(lambda: not any(map(alive, clients)), 60.0)


async def test_client_processes_end_with_a_command_that_is_killed() -> None:
    async with engine(model="m", decode_ms_per_token=5.0) as fake:
        process = await start("--url", fake.url, *SMALL)
        await eventually(lambda: len(fake.seen("/v1/chat/completions")) > 30, 60.0)
        clients = children(process.pid)
        process.kill()
        told = await said(process)
        await eventually(lambda: not any(map(alive, clients)), 60.0)
    assert len(clients) == 2
    assert "Traceback" not in told.err


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_an_endpoint_that_is_down_is_one_line_and_1() -> None:
    told = await load("--url", "http://127.0.0.1:1", *SMALL)
    assert told.code == 1
    assert len(told.err.splitlines()) == 1
    assert "is it running there" in told.err


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("--agents", "3", "--rate", "2"), "--agents (closed loop) and --rate (open loop) exclude"),
        (("--preset", "codecs"), "codex"),
        (("--preset", "groups", "--think", "2"), "think does not apply"),
        (("--scale", "-1"), "must be above 0"),
    ],
)
async def test_what_cannot_be_meant_is_2(words: tuple[str, ...], wanted: str) -> None:
    told = await load("--url", "http://127.0.0.1:1", *words)
    assert told.code == 2
    assert wanted in told.err
