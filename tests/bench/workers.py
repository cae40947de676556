"""Cost and effect of a second worker: CPU per small request at N=2 over N=1, and the hit share of agents at both.

CPU is that of all processes of the router together; both routers get the same load in turns. Hits are those that the
engines report: cached tokens in answers over their prompt tokens, over emulated engines whose caches are too small for
all sessions at once, so that the choice of the engine matters.

    python -m tests.bench.workers [repetitions]
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import uvloop

from router.clock import SystemClock
from router.errors import WarmrouteError
from router.lab.emulator.options import EngineOptions
from router.lab.emulator.supervisor import EmbeddedFleet
from router.lab.loadgen.load import LoadJob, SentRequest
from router.lab.loadgen.load import load as drive
from router.lab.loadgen.report import compute_hit_share
from router.lab.workloads.model import Workload
from router.lab.workloads.presets import CODEX
from tests.bench import routers
from tests.bench.data_path import SMALL, spent_us
from tests.bench.routers import EVEN, Running

CPU_BAR = 1.15
HIT_BAR = 0.01  # a share: one point
UP_WITHIN_S = 60.0
ENGINES, BLOCKS, AGENTS = 4, 1024, 12
WARM = {"policies": {"warm": {"filters": [{"name": "near_longest"}], "scorers": [{"name": "warm"}]}}, "active": "warm"}


class WorkersFailed(WarmrouteError):
    """The workers did not start, or turns of agents failed."""


@dataclass
class Workers:
    """Results by number of workers: microseconds of CPU per small request by repetition, and hit shares."""

    small_us: dict[int, list[float]] = field(default_factory=lambda: {1: [], 2: []})
    hit_share: dict[int, list[float]] = field(default_factory=lambda: {1: [], 2: []})

    @property
    def ratios(self) -> list[float]:
        """CPU at two workers over CPU at one, by repetition."""
        return [two / one for one, two in zip(self.small_us[1], self.small_us[2], strict=True)]

    @property
    def hit_difference(self) -> float:
        """Difference of the median hit shares, two workers minus one."""
        return statistics.median(self.hit_share[2]) - statistics.median(self.hit_share[1])


def measure(repetitions: int, requests: int = SMALL.requests) -> Workers:
    """Measure both. Raises WorkersFailed, and LoadFailed as `load.send` does."""
    seen = Workers()
    with tempfile.TemporaryDirectory(prefix="warmroute-bench-") as folder:
        _measure_cpu(seen, repetitions, requests, Path(folder))
        for repetition in range(repetitions):
            for workers in (1, 2) if repetition % 2 else (2, 1):
                seen.hit_share[workers].append(uvloop.run(_hit_share(workers, repetition, Path(folder))))
    return seen


def _measure_cpu(seen: Workers, repetitions: int, requests: int, folder: Path) -> None:
    shape = replace(SMALL, requests=requests)
    with ExitStack() as stack:
        backends = stack.enter_context(routers.engines(2))
        running = {n: stack.enter_context(router_of(backends, folder, n, EVEN)) for n in (1, 2)}
        for repetition in range(repetitions + 1):
            for workers in (1, 2) if repetition % 2 else (2, 1):
                us = spent_us(running[workers], shape)
                if repetition:  # the first round only warms up
                    seen.small_us[workers].append(us)


@contextmanager
def router_of(backends: list[int], folder: Path, workers: int, sections: Mapping[str, object]) -> Iterator[Running]:
    """Run our router with so many workers, which all accept connections. Raises WorkersFailed."""
    with routers.warmroute(backends, folder, {"workers": workers, **sections}, f"warmroute-{workers}") as running:
        wait_until_up(running)
        yield running


def wait_until_up(running: Running) -> None:
    """Return when all workers accept connections. Raises WorkersFailed."""
    give_up_at = time.monotonic() + UP_WITHIN_S
    while not all(worker["up"] for worker in running.get_admin("/admin/workers")["workers"]):
        if time.monotonic() > give_up_at:
            raise WorkersFailed(f"{running.name}: not all workers are up within {UP_WITHIN_S:g} s")
        time.sleep(0.05)


async def _hit_share(workers: int, seed: int, folder: Path) -> float:
    async with EmbeddedFleet([_engine(n) for n in range(ENGINES)]) as fleet:
        ports = [int(member.url.rpartition(":")[2]) for member in fleet.members]
        with ExitStack() as stack:
            opening = partial(router_of, ports, folder, workers, WARM)
            running = await asyncio.to_thread(lambda: stack.enter_context(opening()))
            url = f"http://127.0.0.1:{running.port}"
            clock, sent = SystemClock(), list[SentRequest]()
            sessions = tuple(_agents(seed).sessions)
            job = LoadJob(
                url=url, model="warm-tiny", prompts="ids", text_seed=seed, concurrency=AGENTS, sessions=sessions
            )
            await drive(job, clock, clock.now(), sent.append)
            await asyncio.to_thread(stack.close)
    failures = [one.failure for one in sent if one.failure is not None]
    if failures:
        raise WorkersFailed(f"{len(failures)} turns failed: {failures[0]}")
    return compute_hit_share(sent) or 0.0


def _engine(number: int) -> EngineOptions:
    return EngineOptions(
        name=f"engine-{number}", blocks=BLOCKS, prefill_tokens_per_s=20_000.0, decode_ms_per_token=1.0, seed=number
    )


def _agents(seed: int) -> Workload:
    """Return the sessions, the same for every number of workers."""
    return CODEX.scale(tokens=0.05, think=0.02, sessions=36 / CODEX.sessions, turns=8 / CODEX.turns.median).workload(
        seed
    )


def main() -> None:
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    seen = measure(repetitions)
    for workers in (1, 2):
        us, hits = seen.small_us[workers], seen.hit_share[workers]
        print(
            f"{workers} worker(s): {statistics.median(us):.1f} us, hit share {statistics.median(hits):.4f}  {us} {hits}"
        )
    ratios = seen.ratios
    print(f"ratio {statistics.median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f}), bar {CPU_BAR}")
    print(f"hit share differs by {seen.hit_difference:+.4f}, bar {HIT_BAR}")


if __name__ == "__main__":
    main()
