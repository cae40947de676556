"""What following a large fleet costs."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import config_of
from tests.gateway.cluster import NAMESPACE, Cluster
from tests.paths import ROOT

PODS = 500
CHANGES_PER_S = 50
CHANGES = 500
BAR = 0.05  # cores


async def test_500_pods_with_50_changes_a_second(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for first in range(0, PODS, 20):
        numbers = range(first, first + 20)
        await asyncio.gather(*(cluster.make_pod(f"p{n}", f"10.1.{n // 250}.{n % 250 + 1}") for n in numbers))
    file = tmp_path / "router.json"
    source = {"namespace": NAMESPACE, "selector": "app=vllm", "api": cluster.config().model_dump()}
    file.write_text(json.dumps(config_of([], fleet={"kubernetes": source})))
    command = [sys.executable, "-m", "tests.gateway.cpu", str(file), str(PODS)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, cwd=ROOT)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"joined\n"
        loop = asyncio.get_running_loop()
        started = loop.time()
        for number in range(CHANGES):
            await asyncio.sleep(max(0.0, started + number / CHANGES_PER_S - loop.time()))
            await cluster.set_ready(f"p{number}", ready=False)
        process.stdin.close()
        spent = json.loads(await process.stdout.readline())
    finally:
        process.kill()
        await process.wait()
    rate = CHANGES / spent["wall_s"]
    cores = spent["cpu_s"] / spent["wall_s"] * max(1.0, CHANGES_PER_S / rate)
    with capsys.disabled():
        print(f"\n{PODS} pods, {rate:.0f} changes/s: {cores:.2%} of a core at {CHANGES_PER_S}")
    assert spent["refused"] >= CHANGES - CHANGES_PER_S
    assert cores <= BAR
