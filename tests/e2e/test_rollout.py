"""`warmroute rollout` as a command, on engines that are processes, under load."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from router.cli.rollout.command import prover
from router.fleet.instance import InstanceState
from router.lab.emulator.options import EngineOptions
from router.lab.emulator.supervisor import EmbeddedFleet
from tests.e2e.chats import Said, beside, chats, crowd
from tests.e2e.conftest import ROOT, Router
from tests.fakes.engines import INSTANT, engine, eventually

pytestmark = pytest.mark.rollout


async def rollout(router: Router, *words: str) -> tuple[int | None, str]:
    """The command's exit code and what it printed."""
    urls = "--admin", router.admin_url, "--metrics", f"{router.url}/metrics"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "router", "rollout", *urls, *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "200", "NO_COLOR": "1"},
    )
    out, _ = await process.communicate()
    return process.returncode, out.decode()


async def test_a_fleet_is_rolled_under_load_without_a_failed_request(router, tmp_path: Path) -> None:
    options = [
        EngineOptions(**INSTANT | {"name": f"r{n}", "seed": n, "decode_ms_per_token": 20, "answer_tokens": 12})
        for n in range(3)
    ]
    answered: list[Said] = []
    async with EmbeddedFleet(options) as fleet:
        listed = [{"name": member.name, "url": member.url} for member in fleet.members]
        async with router(listed) as r:

            async def load() -> None:
                for number in range(10_000):
                    answered.extend(await crowd(chats(r, f"load{number}", 4), 3))

            pids = {member.name: member.pid for member in fleet.members}
            for name, pid in pids.items():
                (tmp_path / name).write_text(str(pid))
            kill = f"sh -c 'kill $(cat {tmp_path}/$WARMROUTE_INSTANCE)'"
            async with beside(load()) as running:
                code, out = await rollout(
                    r, "--command", kill, "--look", "1", "--settle", "0.5", "--max-p90", "50", "--passive"
                )
                assert not running.done(), running.exception()
            assert code == 0, out
            assert "3 engines restarted and proved" in out
            assert all(member.pid != pids[member.name] for member in fleet.members)
            assert {i.state for i in r.core.fleet} == {InstanceState.READY}
            assert [one for one in answered if not one.ok] == []
            assert {one.instance for one in answered} == set(pids)
            assert await r.metric("warmroute_errors_total", reason="died") == 0
            await eventually(r.idle)


async def test_a_command_that_fails_leaves_its_engine_drained_and_the_others_alone(router, tmp_path: Path) -> None:
    options = [EngineOptions(**INSTANT | {"name": f"s{n}", "seed": n}) for n in range(2)]
    async with EmbeddedFleet(options) as fleet:
        listed = [{"name": member.name, "url": member.url} for member in fleet.members]
        async with router(listed) as r:
            code, out = await rollout(r, "--command", "false {id}", "--look", "0", "--engine", "s1")
            assert code == 1
            assert "s1: the command failed with 1; the engine stays drained" in out
            assert {i.id: i.state for i in r.core.fleet} == {"s0": InstanceState.READY, "s1": InstanceState.DRAINED}


async def test_an_engine_is_proved_alone_and_by_prompts(router) -> None:
    async with (
        engine(name="p0") as a,
        engine(name="p1", events=False) as b,
        router([{"name": "p0", "url": a.url}, {"name": "p1", "url": b.url}]) as r,
    ):
        prove = prover(r.admin_url, None, None, passive=False)
        assert await asyncio.to_thread(prove, "p0") == {}
        assert a.seen("/v1/completions")
        assert not b.seen("/v1/completions")
        assert "events.on" in await asyncio.to_thread(prove, "p1")
        assert await asyncio.to_thread(prover(r.admin_url, None, None, passive=True), "p1") == {}
