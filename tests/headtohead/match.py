"""One match: a router in front of new engines, under one load, with one seed.

Times to the first token are the clients', cached tokens are those that the engines report in their answers, CPU time
and memory are the router's, from /proc. Times and hits are of the requests sent after the first `WARM_S` seconds.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from router.clock import SystemClock
from router.lab.loadgen.calibration import measure_tokens_per_word
from router.lab.loadgen.client import LoadClient
from router.lab.loadgen.load import LoadJob, SentRequest
from router.lab.loadgen.processes import run_clients, split_sessions
from router.lab.loadgen.report import compute_hit_share
from router.lab.simulator.outcome import quantile
from tests.bench.routers import Running
from tests.headtohead.contenders import Contender
from tests.headtohead.engines import MODEL, Engine, build_fleet, list_engines
from tests.headtohead.loads import LONG_S, WARM_S, Load

SETTLE_S = 2.0  # until routers have read the engines' metrics and events


class MatchFigures(msgspec.Struct, frozen=True):
    """What one match showed. None: there was nothing to measure it on."""

    # of the whole match: whoever answers sooner is further in the sessions, where pauses are longer
    turns_per_s: float | None
    ttft_p50_s: float | None
    ttft_p90_s: float | None
    ttft_p99_s: float | None
    hit_share: float | None  # of the prompt tokens
    failed: int
    # the rest is None in virtual time
    cpu_ms: float | None = None  # of the router, for each request
    rss_mb: float | None = None  # of the router, at the end
    core_share: float | None = None  # of a core, that the router used
    late_p99_s: float | None = None  # of the clients
    idle_share: float | None = None  # of all cores


class Match(msgspec.Struct, frozen=True):
    """`left_out`: why it could not be played; the figures are then None."""

    router: str
    load: str
    seed: int
    ended: str
    took_s: float
    left_out: str | None
    figures: MatchFigures | None


def encode_matches(matches: Iterable[Match]) -> bytes:
    """Return a JSON array with a match per line, in an order that does not depend on that of the play."""
    ordered = sorted(matches, key=lambda one: (one.load, one.seed, one.router))
    return b"[\n" + b",\n".join(map(msgspec.json.encode, ordered)) + b"\n]\n"


def decode_matches(encoded: bytes) -> list[Match]:
    return msgspec.json.decode(encoded, type=list[Match])


def play(contender: Contender, load: Load, seed: int) -> MatchFigures:
    """Play a match with emulated engines. Raises WarmrouteError or OSError for a router that cannot be installed or
    started.
    """
    return asyncio.run(_play(contender, load, seed))


async def _play(contender: Contender, load: Load, seed: int) -> MatchFigures:
    async with build_fleet(seed, load.blocks) as fleet:
        engines, killed = await list_engines(fleet, load.blocks), fleet.members[0].pid
        return await play_at(engines, contender, load, seed, lambda: os.kill(killed, signal.SIGKILL))


async def play_at(
    engines: Sequence[Engine],
    contender: Contender,
    load: Load,
    seed: int,
    kill: Callable[[], None] = lambda: None,
) -> MatchFigures:
    """Play a match at these engines, of which `kill` kills one."""
    with contender.running(engines) as router:
        await asyncio.sleep(SETTLE_S)
        return await _measure(router, load, seed, kill, SystemClock())


async def _measure(
    router: Running, load: Load, seed: int, kill: Callable[[], None], clock: SystemClock
) -> MatchFigures:
    url, workload = f"http://127.0.0.1:{router.port}", load.make(seed)
    async with LoadClient(url, MODEL, clock) as client:
        per_word = await measure_tokens_per_word(client, seed)
    shares = split_sessions(workload.sessions, load.agents, 1)
    jobs = [
        LoadJob(
            url=url,
            model=MODEL,
            name=f"{load.name}-{seed}",
            text_seed=seed,
            tokens_per_word=per_word,
            concurrency=share.concurrency,
            until_s=LONG_S,
            sessions=share.sessions,
        )
        for share in shares
    ]
    rows: list[SentRequest] = []
    cpu_s, idle_s, began = router.cpu_s(), _idle_s(), clock.now()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run_clients(jobs, clock, rows.append))
        if load.kill_at_s is not None:
            await asyncio.sleep(load.kill_at_s)
            kill()
    took_s = clock.now() - began
    return _describe(rows, router.cpu_s() - cpu_s, router.rss_mb(), took_s, _idle_s() - idle_s)


def _describe(rows: Sequence[SentRequest], cpu_s: float, rss_mb: float, took_s: float, idle_s: float) -> MatchFigures:
    ended = sum(row.failure is None and row.sent_s + row.duration_s <= LONG_S for row in rows)
    later = [row for row in rows if row.sent_s >= WARM_S]
    answered = [row for row in later if row.failure is None]
    ttfts = sorted(row.ttft_s for row in answered if row.ttft_s is not None)
    return MatchFigures(
        turns_per_s=ended / LONG_S,
        ttft_p50_s=quantile(ttfts, 0.5),
        ttft_p90_s=quantile(ttfts, 0.9),
        ttft_p99_s=quantile(ttfts, 0.99),
        hit_share=compute_hit_share(answered),
        failed=sum(row.failure is not None for row in rows),
        cpu_ms=cpu_s * 1e3 / max(1, len(rows)),
        rss_mb=rss_mb,
        core_share=cpu_s / took_s,
        late_p99_s=quantile(sorted(row.late_s for row in later), 0.99),
        idle_share=idle_s / took_s / (os.cpu_count() or 1),
    )


def _idle_s() -> float:
    """Return the time that all cores have been idle so far."""
    words = Path("/proc/stat").read_text().splitlines()[0].split()
    return int(words[4]) / os.sysconf("SC_CLK_TCK")
