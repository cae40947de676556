"""Both benchmarks on emulated engines: what they find without a pool, their files, and a report after Ctrl-C."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from router.config.schema import Config, InstanceConfig
from router.errors import ExtraMissing
from router.lab.workloads.presets import CODEX
from tests.bench.real_stack.command import bench_agents, bench_layers
from tests.bench.real_stack.environment import BenchFailed, Environment, EnvironmentFactory
from tests.fakes.engines import FakeEngine, engine, eventually

WORKLOAD = CODEX.scale(tokens=0.02, sessions=3 / 610, turns=3 / 33, think=0.0005).workload(1)
POLICIES = {name: {"scorers": [{"name": name}]} for name in ("round_robin", "prefix_overlap")}


def stage_of(engines: int = 2, running: list[FakeEngine] | None = None, **options: Any) -> EnvironmentFactory:
    """Fresh emulated engines, put into `running`; there is never a pool under them, whatever is asked."""

    @asynccontextmanager
    async def stage(pool: bool) -> AsyncIterator[Environment]:
        async with AsyncExitStack() as stack:
            fakes = [await stack.enter_async_context(engine(model="m", **options)) for _ in range(engines)]
            if running is not None:
                running.extend(fakes)
            instances = [InstanceConfig(url=fake.url) for fake in fakes]
            front = Config.model_validate({"policies": POLICIES, "active": "round_robin"})
            front = front.model_copy(update={"fleet": front.fleet.model_copy(update={"instances": instances})})
            yield Environment(tuple(fake.url for fake in fakes), None, "m", front)

    return stage


def console() -> Console:
    return Console(file=io.StringIO(), width=160)


def printed(told: Console) -> str:
    assert isinstance(told.file, io.StringIO)
    return told.file.getvalue()


async def test_layers_without_a_pool_says_so(tmp_path: Path) -> None:
    told = console()
    assert await bench_layers(stage_of(prefill_tokens_per_s=20_000.0), tmp_path, 512, 2, 7, True, console=told)
    report = json.loads((tmp_path / "layers.json").read_text())
    assert [(one["kind"], one["source"]) for one in report["requests"][:4]] == [
        ("cold", "computed"),
        ("local", "local"),
        ("pool", "computed"),  # B has never seen it and there is nothing to load it from
        ("control", "computed"),
    ]
    assert report["identical"] == {"same": 2, "of": 2}
    assert report["requests"][1]["engine"]["local_tokens"] == 496  # 31 whole blocks of 16 in 511 tokens
    assert (tmp_path / "layers.png").read_bytes().startswith(b"\x89PNG")
    said = printed(told)
    assert "2/2 local" in said
    assert "0/2 pool" in said
    assert "pool: not as expected; by vLLM's counters the KV was 2 computed." in said
    assert "Mooncake" not in said


async def test_layers_needs_two_engines(tmp_path: Path) -> None:
    with pytest.raises(BenchFailed, match="two engines"):
        await bench_layers(stage_of(engines=1), tmp_path, 64, 1, 7, False, console=console())


def asked(fakes: list[FakeEngine]) -> int:
    return sum(len(fake.seen("/v1/completions")) for fake in fakes)


async def test_layers_interrupted_tells_what_is_done(tmp_path: Path) -> None:
    told, fakes = console(), list[FakeEngine]()
    stage = stage_of(running=fakes, decode_ms_per_token=10.0)
    bench = asyncio.create_task(bench_layers(stage, tmp_path, 256, 50, 7, False, console=told))
    await eventually(lambda: bench.done() or asked(fakes) >= 5)  # two warm-ups, cold, local, and one under way
    bench.cancel()
    assert await bench is False
    report = json.loads((tmp_path / "layers.json").read_text())
    assert report["interrupted"]
    assert [one["kind"] for one in report["requests"]] == ["cold", "local"]
    assert "Interrupted" in printed(told)


def agents(tmp_path: Path, told: Console, stage: EnvironmentFactory, chart: bool = False) -> Any:
    return bench_agents(stage, tmp_path, WORKLOAD, "prefix_overlap", chart, console=told)


async def test_agents_under_three_arms(tmp_path: Path) -> None:
    told = console()
    assert await agents(tmp_path, told, stage_of(), chart=True)
    report = json.loads((tmp_path / "agents.json").read_text())
    assert [(arm["name"], arm["turns"], arm["failed"]) for arm in report["arms"]] == [
        ("round robin, no pool", WORKLOAD.turns, 0),
        ("round robin + pool", WORKLOAD.turns, 0),
        ("cache-aware + pool", WORKLOAD.turns, 0),
    ]
    robin, _, aware = report["arms"]
    asked = sum(turn.prompt_tokens for session in WORKLOAD.sessions for turn in session.turns)
    for arm in report["arms"]:
        assert arm["engines"]["prompt_tokens"] == asked
        assert sum(arm["shares"].values()) == pytest.approx(1.0)
        assert arm["shares"]["pool"] == 0.0
        assert arm["notes"] == []
    assert aware["shares"]["local"] > robin["shares"]["local"]
    # the cache-aware router keeps each session where it is, so only what sessions share is computed twice
    assert aware["shares"]["local"] > report["workload"]["ideal_share"] - 0.1
    assert (tmp_path / "agents.png").read_bytes().startswith(b"\x89PNG")
    assert "cache-aware + pool" in printed(told)


async def test_agents_interrupted_tells_what_is_done(tmp_path: Path) -> None:
    told, fakes = console(), list[FakeEngine]()
    bench = asyncio.create_task(agents(tmp_path, told, stage_of(running=fakes, decode_ms_per_token=20.0)))
    await eventually(lambda: bench.done() or asked(fakes) > len(WORKLOAD.sessions), 20.0)  # one is at its second turn
    bench.cancel()
    assert await bench is False
    report = json.loads((tmp_path / "agents.json").read_text())
    assert report["interrupted"]
    assert [arm["whole"] for arm in report["arms"]] == [False]
    assert 1 <= report["arms"][0]["turns"] < WORKLOAD.turns
    assert report["arms"][0]["engines"]["prompt_tokens"] > 0
    assert "partial" in printed(told)


async def test_a_workload_too_long_for_the_engines_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchFailed, match="choose a smaller --scale"):
        await agents(tmp_path, console(), stage_of(max_model_len=128))


async def test_charts_without_matplotlib_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ExtraMissing, match=r"warmroute\[lab\]"):
        await bench_layers(stage_of(), tmp_path, 64, 1, 7, True, console=console())
