"""Emulated engines as processes: started, killed, restarted on the same ports, and gone with their parent."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import httpx
import pytest

from router.lab.emulator import supervisor
from router.lab.emulator.options import EngineOptions
from router.lab.emulator.supervisor import EmbeddedFleet, EngineNotStarted
from tests.fakes.engines import engine_process, eventually


def alive(pid: int) -> bool:
    """Zombies are dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_a_fleet_starts_together_and_ends_together() -> None:
    async with EmbeddedFleet([EngineOptions(name=f"e{i}") for i in range(3)]) as fleet:
        members = fleet.members
        assert [member.name for member in members] == ["e0", "e1", "e2"]
        assert len({member.pid for member in members} | {os.getpid()}) == 4
        async with httpx.AsyncClient() as http:
            for member in members:
                assert (await http.get(f"{member.url}/health")).status_code == 200
    assert not any(alive(member.pid) for member in members)


async def test_a_killed_engine_comes_back_where_it_was(caplog: pytest.LogCaptureFixture) -> None:
    async with engine_process(name="victim", transfer="mooncake") as member, httpx.AsyncClient() as http:
        before = member()
        sources = (await http.get(f"{before.url}/kv_event_sources")).json()
        assert before.bootstrap_url is not None
        os.kill(before.pid, signal.SIGKILL)
        await eventually(lambda: member().pid != before.pid, 15)
        assert (member().url, member().bootstrap_url) == (before.url, before.bootstrap_url)
        assert (await http.get(f"{before.url}/kv_event_sources")).json() == sources
    assert "engine victim: ended with status -9" in caplog.text


@pytest.mark.parametrize(("stable_s", "pauses"), [(0.0, ["0.25", "0.25"]), (60.0, ["0.25", "0.50"])])
async def test_the_pause_before_a_restart_grows_only_while_an_engine_dies_soon(
    stable_s: float, pauses: list[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "STABLE_S", stable_s)
    async with engine_process(name="victim") as member:
        for _ in range(2):
            pid = member().pid
            os.kill(pid, signal.SIGKILL)
            await eventually(lambda pid=pid: member().pid != pid, 15)
    assert [message.split()[-2] for message in caplog.messages if "restarting in" in message] == pauses


async def test_one_that_cannot_start_fails_the_fleet_and_leaves_nobody(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(EngineNotStarted, match="lost"):
        async with EmbeddedFleet([EngineOptions(name="fine"), EngineOptions(name="lost", tokenizer="/nowhere")]):
            pass
    assert "/nowhere/tokenizer.json" in capfd.readouterr().err


async def test_sigterm_ends_it_at_once_even_inside_an_answer() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "router.lab.emulator.server", '{"decode_ms_per_token": 1000}'),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    announced = json.loads(await process.stdout.readline())
    assert announced["pid"] == process.pid
    assert announced["events"]["0"]["endpoint"].startswith("tcp://127.0.0.1:")
    async with httpx.AsyncClient(base_url=announced["url"]) as http:
        body = {"model": "warm-tiny", "prompt": [1], "max_tokens": 100, "stream": True}
        async with http.stream("POST", "/v1/completions", json=body) as answer:
            assert answer.status_code == 200
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 2) == 0
    assert await process.communicate() == (b"", b"")  # one line, no more, and no complaint


async def test_children_do_not_outlive_a_killed_parent() -> None:
    script = (
        "import asyncio\n"
        "from router.lab.emulator.options import EngineOptions\n"
        "from router.lab.emulator.supervisor import EmbeddedFleet\n"
        "async def main():\n"
        "    async with EmbeddedFleet([EngineOptions()]) as fleet:\n"
        "        print(fleet.members[0].pid, flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout is not None
    child = int(await parent.stdout.readline())
    assert alive(child)
    parent.kill()
    await parent.wait()
    await eventually(lambda: not alive(child))


async def test_wrong_options_are_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "router.lab.emulator.server", '{"prot": 1}')
    assert await process.wait() == 1
    told = capfd.readouterr().err
    assert "prot" in told
    assert told.count("\n") == 1
