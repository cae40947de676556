"""What following a large fleet costs."""

from __future__ import annotations

import asyncio
import sys
from itertools import count
from pathlib import Path

from router.config.sections.discovery import KubernetesConfig
from tests.gateway.cluster import NAMESPACE, Cluster
from tests.paths import ROOT

PODS = 500
CHANGES_PER_S = 50
SECONDS = 10.0
BAR = 0.05  # cores


async def test_500_pods_with_50_changes_a_second(cluster: Cluster, tmp_path: Path) -> None:
    for first in range(0, PODS, 20):
        numbers = range(first, first + 20)
        await asyncio.gather(*(cluster.make_pod(f"p{n}", f"10.1.{n // 250}.{n % 250 + 1}") for n in numbers))
    file = tmp_path / "kubernetes.json"
    config = KubernetesConfig(namespace=NAMESPACE, selector="app=vllm", api=cluster.config())
    file.write_text(config.model_dump_json())
    command = [sys.executable, "-m", "tests.gateway.cpu", str(file), str(SECONDS)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"listed %d\n" % PODS
    loop = asyncio.get_running_loop()
    started, changes = loop.time(), 0
    for number in count():
        if loop.time() >= started + SECONDS:
            break
        await cluster.set_ready(f"p{number % PODS}", ready=number // PODS % 2 == 1)
        changes += 1
        await asyncio.sleep(max(0.0, started + changes / CHANGES_PER_S - loop.time()))
    lists, cpu_s = (float(word) for word in (await process.stdout.readline()).split())
    await process.wait()
    print(f"{changes / SECONDS:.0f} changes/s in {lists:.0f} lists: {cpu_s / SECONDS:.2%} of a core")
    assert lists > 0
    assert cpu_s / SECONDS <= BAR
