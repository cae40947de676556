"""`warmroute serve URL...` as a process, in front of emulated engines, without any file."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import httpx
import pytest

from router.config.schema import Config
from tests.fakes.engines import engine
from tests.paths import ROOT, TOKENIZER
from tests.router.cli.conftest import Shell

ASK = {"model": "warm-tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}


async def test_serve_starts_from_urls_alone(tmp_path: Path) -> None:
    words = ("--policy", "round_robin", "--tokenizer", f"warm-tiny={TOKENIZER}", "--port", "0", "--admin-port", "0")
    async with engine() as one, engine() as two:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "router", "serve", one.url, two.url, *words),
            stderr=asyncio.subprocess.PIPE,
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        try:
            port, admin = await _ports(process)
            async with httpx.AsyncClient(timeout=10) as client, asyncio.timeout(60):
                while (await client.get(f"http://127.0.0.1:{port}/ready")).status_code != 200:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                while len((await client.get(f"http://127.0.0.1:{port}/v1/models")).json()["data"]) < 1:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                answers = [await client.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=ASK) for _ in "ab"]
                policies = (await client.get(f"http://127.0.0.1:{admin}/admin/policies")).json()["policies"]
        finally:
            process.terminate()
            await process.communicate()
    assert [answer.status_code for answer in answers] == [200, 200]
    roles = {policy["name"]: policy["role"] for policy in policies}
    assert roles["round_robin"] == "active"
    assert "warm" in roles  # every shipped policy is there to switch to
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("words", "workers"), [((), 3), (("--workers", "2"), 2)])
def test_a_picker_has_the_workers_of_its_configuration_or_of_the_command_line(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], workers: int
) -> None:
    started: list[int] = []

    async def serve_router(settings: Config, **_: object) -> None:
        started.append(settings.workers)

    monkeypatch.setattr("router.cli.serve.run.serve_router", serve_router)
    monkeypatch.setattr("router.cli.serve.command.log_to_stderr", lambda *_, **__: None)
    file = shell.file("workers: 3\npicker: {port: 9002}\nfleet: {instances: [{url: http://127.0.0.1:8000}]}\n")
    assert shell("picker", "--config", file, *words).code == 0
    assert started == [workers]


async def _ports(process: asyncio.subprocess.Process) -> tuple[int, int]:
    assert process.stderr is not None
    async with asyncio.timeout(60):
        async for line in process.stderr:
            if found := re.search(rb"listening on \S+:(\d+), admin on \S+:(\d+)", line):
                return int(found[1]), int(found[2])
    raise AssertionError("the router ended before it listened")
