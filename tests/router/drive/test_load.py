"""Agents against an emulated engine: all of them come to their end, and trouble is counted."""

from __future__ import annotations

import asyncio
from io import StringIO

from rich.console import Console

from router.clock import SystemClock
from router.drive.load import load, report
from router.sim.workloads import CODEX, Workload
from tests.fakes.engines import engine

SMALL = CODEX.scaled(tokens=0.01, sessions=4 / CODEX.sessions, turns=3 / CODEX.turns.median, think=0.001)


def printed(loaded: object) -> str:
    console = Console(width=160, file=StringIO())
    report(console, loaded, "agents")  # type: ignore[arg-type]
    return console.file.getvalue()  # type: ignore[attr-defined]


async def loaded_with(workload: Workload, **faults: object) -> tuple[object, list[tuple[int, int]], set[bytes]]:
    seen: list[tuple[int, int]] = []
    async with engine(model="m", decode_ms_per_token=0.1) as fake:
        fake.faults(**faults)
        result = await load(
            fake.url, "m", workload, 2, SystemClock(), lambda turns, failed: seen.append((turns, failed))
        )
        names = {request.headers["x-session-id"] for request in fake.seen("/v1/completions")}
    return result, seen, names


async def test_every_session_is_talked_to_its_end_under_a_name_of_its_own() -> None:
    workload = SMALL.workload(seed=3)
    result, seen, names = await loaded_with(workload)
    assert len(result.answers) == workload.turns  # type: ignore[attr-defined]
    assert seen[-1] == (workload.turns, 0)
    assert len(names) == len(workload.sessions) == 4
    text = printed(result)
    assert f"{workload.turns} / 0" in text
    assert "TTFT ms p50 / p90 / p99" in text


async def test_failures_end_their_session_and_are_shown() -> None:
    workload = SMALL.workload(seed=3)
    result, seen, _ = await loaded_with(workload, refuse=True)
    assert seen[-1] == (len(workload.sessions), len(workload.sessions))
    assert "failed 4x" in printed(result)


async def test_an_interruption_keeps_what_there_is() -> None:
    slow = SMALL.workload(seed=3)
    async with engine(model="m", decode_ms_per_token=20) as fake:
        first = asyncio.Event()
        running = asyncio.create_task(load(fake.url, "m", slow, 2, SystemClock(), lambda turns, failed: first.set()))
        await asyncio.wait_for(first.wait(), 30)
        running.cancel()
        result = await running
    assert result.interrupted
    assert 0 < len(result.answers) < slow.turns
    assert "only a part" in printed(result)
