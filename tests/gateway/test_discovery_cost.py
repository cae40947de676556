"""What following a large fleet costs."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import pytest

from router.lab.local_stack.guard import ProcessGuard
from tests.e2e.conftest import config_of
from tests.fakes.engines import eventually
from tests.gateway.cluster import NAMESPACE, Cluster
from tests.paths import ROOT
from tests.stack.children import Child

PODS = 500
CHANGES_PER_S = 50
CHANGES = 500
BAR = 0.05  # cores
SLOWER = 2.5  # a shared machine may be: 0.081 was measured on one that took twice as long for everything
START_S = 30.0


async def test_500_pods_with_50_changes_a_second(
    cluster: Cluster, tmp_path: Path, guard: ProcessGuard, capsys: pytest.CaptureFixture[str]
) -> None:
    for first in range(0, PODS, 20):
        numbers = range(first, first + 20)
        await asyncio.gather(*(cluster.make_pod(f"p{n}", f"10.1.{n // 250}.{n % 250 + 1}") for n in numbers))
    file = tmp_path / "router.json"
    source = {"namespace": NAMESPACE, "selector": "app=vllm", "api": cluster.config().model_dump()}
    file.write_text(json.dumps(config_of([], fleet={"kubernetes": source})))
    command = [sys.executable, "-m", "tests.gateway.cpu", str(file), str(PODS)]
    following = Child("cpu", command, tmp_path, {"PYTHONPATH": str(ROOT)}, guard)
    following.start()
    try:
        await asyncio.to_thread(following.wait, lambda: "joined" in following.log.read_text(), START_S)
        loop = asyncio.get_running_loop()
        started = loop.time()
        for number in range(CHANGES):
            await asyncio.sleep(max(0.0, started + number / CHANGES_PER_S - loop.time()))
            await cluster.set_ready(f"p{number}", ready=False)
        following.signal(signal.SIGTERM)
        await eventually(lambda: not following.running(), START_S)
    finally:
        following.kill()
    spent = json.loads(following.log.read_text().splitlines()[-1])
    rate = CHANGES / spent["wall_s"]
    cores = spent["cpu_s"] / spent["wall_s"] * max(1.0, CHANGES_PER_S / rate)
    with capsys.disabled():
        print(f"\n{PODS} pods, {rate:.0f} changes/s: {cores:.2%} of a core at {CHANGES_PER_S}")
    assert spent["refused"] >= CHANGES - CHANGES_PER_S
    assert cores <= SLOWER * BAR
