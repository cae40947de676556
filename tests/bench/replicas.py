"""What several routers cost each other: CPU time of the exchange, and the time to take over a router's index.

exchange   every router books, begins and ends so many requests a second at 16 engines, each of a session, and
           tells its peers, which run in processes of their own; the cost is the CPU time of one of
           them, libzmq's thread included, beyond that of the same load without replicas
start      a router takes over the index of another one; both are processes of their own

python -m tests.bench.replicas [--requests-per-s 1000] [--peers 3] [--seconds 10] [--blocks 1000000]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from array import array
from contextlib import ExitStack
from itertools import count
from typing import Any

import uvloop

from router.control.peers.messages import SessionMoved
from router.control.process import tune_interpreter
from router.kvcache.events import BlocksStored, EngineHash, EventBatch, TargetId, Tier
from router.lab.local_stack.preflight import free_ports
from tests.bench import routers
from tests.bench.figures import Bar, Line
from tests.bench.row import BenchRun, NotMeasured, Row
from tests.router.control.peers.replica import Replica

REQUESTS_PER_S, PEERS, BLOCKS = 1000, 3, 1_000_000
SHARE_BAR, START_BAR_S = 0.05, 2.0
ENGINES = "abcdefghijklmnop"
TICK_S = 0.01
WARM_UP_S = 2.0
START_S = 60.0
TARGETS, BLOCK_TOKENS, EVENT_BLOCKS = 8, 16, 1000


async def load(replica: Replica, requests_per_s: int, seconds: float, *, shared: bool = True) -> None:
    """Begin, answer and end requests at a steady rate; each lasts ten ticks. `shared`: they are published."""
    loop = asyncio.get_running_loop()
    report_load = replica.exchange.report_load if shared else lambda target: None
    share = replica.exchange.share if shared else lambda message: None
    began, running = loop.time(), []
    for tick in count(1):
        for n in range(round(requests_per_s * TICK_S)):
            target = replica.core.fleet.target(TargetId(f"{ENGINES[(tick * 7 + n) % len(ENGINES)]}/0"))
            assert target is not None
            booking = target.load_book.book(400, 1600)
            running.append((tick, target, booking))
            report_load(target.id)
            share(SessionMoved(False, "m", f"{tick * n % 4096:032x}", target.id, loop.time()))
        while running and running[0][0] <= tick - 10:
            _, target, booking = running.pop(0)
            booking.on_first_byte()
            report_load(target.id)
            booking.release()
            report_load(target.id)
        if (due_s := began + tick * TICK_S - loop.time()) > 0:
            await asyncio.sleep(due_s)
        if loop.time() - began > seconds:
            return


async def exchange(number: int, ports: list[int], requests_per_s: int, seconds: float) -> dict[str, float]:
    """Return CPU seconds per second of this router, without and with its peers, and what it has received."""
    peers = [f"127.0.0.1:{port}" for port in ports]
    alone = Replica("alone", 0, peers, engines=ENGINES)
    tune_interpreter()  # as a router's process is
    used = []
    for replica in (alone, Replica(f"run{number}", ports[number], peers, engines=ENGINES)):
        if replica is not alone:
            await replica.start()
            async with asyncio.timeout(START_S):
                while sum(report.up for report in replica.exchange.describe()) < len(peers) - 1:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        shared = replica is not alone
        await load(replica, requests_per_s, WARM_UP_S, shared=shared)
        before, began = time.process_time(), time.perf_counter()
        await load(replica, requests_per_s, seconds, shared=shared)
        used.append((time.process_time() - before) / (time.perf_counter() - began))
    reports = [report for report in replica.exchange.describe() if not report.own]
    found = {
        "without": used[0],
        "with": used[1],
        "heard": sum(report.up for report in reports),
        "received_bytes_per_s": sum(report.bytes_received for report in reports) / (seconds + WARM_UP_S),
        "sent_bytes_per_s": sum(report.bytes_sent for report in reports) / (seconds + WARM_UP_S),
        "lag_ms": max((report.lag_s or 0.0) for report in reports) * 1e3,
        "gaps": replica.exchange._peer_runs.gaps,
    }
    if number:  # until the first router has measured
        await load(replica, requests_per_s, WARM_UP_S)
    await replica.close()
    return found


async def donate(ports: list[int], blocks: int) -> None:
    """Be a router that knows so many blocks, until stdin is closed."""
    donor = Replica("donor", ports[0], [f"127.0.0.1:{port}" for port in ports], engines="")
    for name in ENGINES[:TARGETS]:
        donor.join(name, streamed=True)
        fill(donor, TargetId(f"{name}/0"), blocks // TARGETS)
    await donor.start()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await donor.close()


def fill(replica: Replica, target: TargetId, blocks: int) -> None:
    """Apply events of an engine that stored so many blocks, in prompts of `EVENT_BLOCKS`."""
    indexer = replica.core.indexer
    indexer.on_connected(target)
    for seq in range(blocks // EVENT_BLOCKS):
        hashes = [EngineHash(seq * EVENT_BLOCKS + n + 1) for n in range(EVENT_BLOCKS)]
        tokens = array("I", [seq, *range(EVENT_BLOCKS * BLOCK_TOKENS - 1)])
        stored = BlocksStored(hashes, None, tokens, BLOCK_TOKENS, Tier.GPU, 0, None, None, None)
        indexer.on_replayed(target, EventBatch(seq, float(seq), 0, [stored], {}))
    while indexer.resume(target):
        pass
    indexer.on_replay_end(target, True)


async def learn(ports: list[int]) -> dict[str, float]:
    """Return the seconds until this router has taken over what the other one knows, its CPU time, and its blocks."""
    router = Replica("starting", ports[1], [f"127.0.0.1:{port}" for port in ports], engines="")
    began, used = time.perf_counter(), time.process_time()
    await router.start()
    took_s, used = time.perf_counter() - began, time.process_time() - used
    for name in ENGINES[:TARGETS]:
        router.join(name, streamed=True)
    blocks = sum(router.core.indexer.copies(tier).held for tier in Tier)
    await router.close()
    return {"seconds": took_s, "cpu_seconds": used, "blocks": blocks}


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "tests.bench.replicas", *map(str, arguments)]


def measure_exchange(requests_per_s: int, peers: int, seconds: float) -> dict[str, Any]:
    ports = free_ports(peers + 1)
    options = ("--requests-per-s", requests_per_s, "--seconds", seconds, "--ports", *ports)
    with ExitStack() as stack:
        processes = [stack.enter_context(routers.child(command("exchange", n, *options))) for n in range(peers + 1)]
        found: dict[str, Any] = json.loads(processes[0].communicate(timeout=START_S + 4 * (seconds + WARM_UP_S))[0])
        for process in processes[1:]:
            process.communicate(timeout=START_S)
    return found


def measure_start(blocks: int) -> dict[str, Any]:
    ports = free_ports(2)
    options = ("--ports", *ports, "--blocks", blocks)
    with routers.child(command("donate", 0, *options)) as donor:
        assert donor.stdout is not None
        donor.stdout.readline()
        found: dict[str, Any] = json.loads(subprocess.check_output(command("learn", 1, *options), timeout=START_S))
        donor.communicate(timeout=START_S)
    return found


def measure(run: BenchRun) -> list[Line]:
    """Return the lines of the row. Raises NotMeasured where not all were heard, or the index did not arrive."""
    shares, starts = [], []
    for repetition in range(run.effort.repetitions):
        run.report(f"repetition {repetition + 1}")
        found = measure_exchange(REQUESTS_PER_S, PEERS, run.effort.seconds(8.0, 4.0))
        if found["heard"] < PEERS:
            raise NotMeasured(f"{found['heard']} of {PEERS} others were heard")
        shares.append((found["with"] - found["without"]) * 100)
        learned = measure_start(BLOCKS)
        if learned["blocks"] < BLOCKS:
            raise NotMeasured(f"{learned['blocks']} of {BLOCKS} blocks were taken over")
        starts.append(learned["seconds"])
    what = f"{PEERS} others, each at {REQUESTS_PER_S:,} requests/s"
    return [
        Line(f"CPU of the exchange with {what}", "% of a core", shares, bar=Bar(SHARE_BAR * 100)),
        Line(f"a router takes over an index of {BLOCKS:,} blocks when it starts", "s", starts, bar=Bar(START_BAR_S)),
    ]


ROWS = (Row("replicas", "several routers", measure, 230, 35),)


def main() -> None:
    arguments = argparse.ArgumentParser(prog="python -m tests.bench.replicas", description=__doc__)
    arguments.add_argument("part", nargs="?", choices=["exchange", "donate", "learn"], help="of a child process")
    arguments.add_argument("number", nargs="?", type=int, default=0, help="of its router")
    arguments.add_argument("--requests-per-s", type=int, default=REQUESTS_PER_S)
    arguments.add_argument("--peers", type=int, default=PEERS)
    arguments.add_argument("--seconds", type=float, default=10.0)
    arguments.add_argument("--blocks", type=int, default=BLOCKS)
    arguments.add_argument("--ports", type=int, nargs="*", default=[])
    chosen = arguments.parse_args()
    if chosen.part == "exchange":
        found = exchange(chosen.number, chosen.ports, chosen.requests_per_s, chosen.seconds)
        print(json.dumps(uvloop.run(found)))
    elif chosen.part == "donate":
        uvloop.run(donate(chosen.ports, chosen.blocks))
    elif chosen.part == "learn":
        print(json.dumps(uvloop.run(learn(chosen.ports))))
    else:
        print(json.dumps(measure_start(chosen.blocks), indent=1))
        seen = measure_exchange(chosen.requests_per_s, chosen.peers, chosen.seconds)
        print(json.dumps(seen | {"share_of_a_core": seen["with"] - seen["without"]}, indent=1))


if __name__ == "__main__":
    main()
