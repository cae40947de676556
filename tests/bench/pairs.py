"""Two checkouts beside each other: the router's CPU time in this one over that in the other, row by row.

    python -m tests.bench.pairs CHECKOUT [--only ROW ...] [--starts 8] [--turns 16]

Both routers run at once, in front of the same engines, and get the same requests in turns of a fraction of a second, so
that a busy machine slows both, and on the same core, away from engines and load. The ratio is the median over a start's
turns; several starts, because two processes of the same code differ. Pass a copy of this checkout to see by how much.
Builds must be alike: both compiled or both pure.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from router.lab.emulator.vocabulary import DATA
from tests.bench import routers
from tests.bench.agent_turns import ENGINES, NEW_TOKENS, TOKENS, cache_aware_settings, check_local
from tests.bench.asking import TimedClient
from tests.bench.data_path import CHUNK, LARGE, SMALL, spent_us
from tests.bench.load import Shape
from tests.bench.precise import SMALL_TARGETS, SMALL_TOKENS
from tests.bench.prompts import Chat, Words
from tests.bench.routers import EVEN, ROOT, Running
from tests.bench.tenants import KEY, tenant_settings
from tests.bench.workers import wait_until_up

CORES = sorted(os.sched_getaffinity(0))
ROUTER_CORES, OTHER_CORES = CORES[:1], CORES[1:] or CORES
WARM_UP = 2  # turns
INDEX_BLOCKS = 20_000

Settings = Callable[[Path], Mapping[str, Any]]
Turn = Callable[[], float]
"""Does one turn of work and returns its CPU time, in a unit of its row."""


class PairRow(NamedTuple):
    """A load through both routers. `body`: of each request; None: as `shape` makes it."""

    shape: Shape
    settings: Settings
    engines: int = 2
    events: bool = False
    body: bytes | None = None
    key: str | None = None


def even(folder: Path) -> Mapping[str, Any]:
    return EVEN


def two_workers(folder: Path) -> Mapping[str, Any]:
    return {**EVEN, "workers": 2}


def warm(folder: Path) -> Mapping[str, Any]:
    return cache_aware_settings(DATA)


ROWS = {
    "small": PairRow(SMALL.shrunk(16), even),
    "large": PairRow(LARGE.shrunk(32), even),
    "chunk": PairRow(replace(CHUNK, requests=8, connections=8), even),
    "tenants": PairRow(SMALL.shrunk(16), tenant_settings, key=KEY),
    "workers": PairRow(SMALL.shrunk(16), two_workers),
    "precise-small": PairRow(
        *(SMALL.shrunk(16), warm, SMALL_TARGETS, True),
        body=Chat(Words(DATA), SMALL_TOKENS, seed=3, message_tokens=SMALL_TOKENS).body(),
    ),
}


@contextmanager
def loaded(row: PairRow, checkouts: Sequence[Path], folder: Path) -> Iterator[list[Turn]]:
    """Run both routers; yield a turn of the row's load through each."""
    with ExitStack() as stack:
        backends = stack.enter_context(routers.engines(row.engines, events=row.events))
        running = start(stack, backends, row.settings, checkouts, folder)
        yield [partial(spent_us, router, row.shape, row.body, row.key) for router in running]
        check(running, row.settings)


@contextmanager
def warm_turns(checkouts: Sequence[Path], folder: Path) -> Iterator[list[Turn]]:
    """Run both routers; yield the next turn of the same agent's chat of 80,000 tokens through each."""
    words = Words(DATA)
    with ExitStack() as stack:
        backends = stack.enter_context(routers.engines(ENGINES, events=True))
        running = start(stack, backends, warm, checkouts, folder)
        chats = [Chat(words, TOKENS - 20 * NEW_TOKENS, seed=7) for _ in running]
        clients = [stack.enter_context(TimedClient(router.port, "agent")) for router in running]

        def turn(number: int) -> float:
            chats[number].turn(NEW_TOKENS)
            body = chats[number].body()
            before = running[number].cpu_s()
            clients[number].ask(body)
            return running[number].cpu_s() - before

        yield [partial(turn, number) for number in range(len(running))]
        check(running, warm)


@contextmanager
def indexes(checkouts: Sequence[Path], folder: Path) -> Iterator[list[Turn]]:
    """Run both indexes, each in a process; yield a turn of each: events applied, decoded, removed, prompts matched."""
    script = (
        "import sys, time; from tests.bench import index\n"
        "for line in sys.stdin:\n"
        f"    began = time.process_time(); index.measure(1, {INDEX_BLOCKS})\n"
        "    print(time.process_time() - began, flush=True)\n"
    )
    with ExitStack() as stack:
        command = [sys.executable, "-c", script]
        processes = [stack.enter_context(routers.child(command, code)) for code in checkouts]

        def turn(process: subprocess.Popen[bytes]) -> float:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
            return float(process.stdout.readline())

        yield [partial(turn, process) for process in processes]


def start(
    stack: ExitStack, backends: list[int], settings: Settings, checkouts: Sequence[Path], folder: Path
) -> list[Running]:
    """Start the router of each checkout."""
    running = []
    with on_cores(ROUTER_CORES):
        for number, code in enumerate(checkouts):
            own = folder / str(number)
            own.mkdir(exist_ok=True)
            running.append(stack.enter_context(routers.warmroute(backends, own, settings(own), code=code)))
            wait_until_up(running[-1])
    return running


@contextmanager
def on_cores(cores: list[int]) -> Iterator[None]:
    """Run this process, and what it starts, on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def check(running: Sequence[Running], settings: Settings) -> None:
    """Check that routers that tokenise did it here. Raises NotMeasured otherwise."""
    for router in running if settings is warm else ():
        check_local(router)


LOADS: dict[str, Callable[[Sequence[Path], Path], Any]] = {
    **{name: partial(loaded, row) for name, row in ROWS.items()},
    "warm-turn": warm_turns,
    "index": indexes,
}


def ratios(name: str, checkouts: Sequence[Path], starts: int, turns: int) -> list[float]:
    """Return the median ratio of each start. Raises LoadFailed, NotMeasured and InstallFailed."""
    found = []
    for number in range(starts):
        with tempfile.TemporaryDirectory(prefix="warmroute-pairs-") as folder, on_cores(OTHER_CORES):
            order = checkouts if number % 2 else checkouts[::-1]
            with LOADS[name](order, Path(folder)) as (first, second):
                for _ in range(WARM_UP):
                    first(), second()
                seen = []
                for turn in range(turns):
                    one, other = (first(), second()) if turn % 2 else (second(), first())[::-1]
                    seen.append(one / other if number % 2 else other / one)
                found.append(statistics.median(seen))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--only", choices=LOADS, nargs="+", default=list(LOADS), metavar="ROW")
    parser.add_argument("--starts", type=int, default=8)
    parser.add_argument("--turns", type=int, default=16)
    asked = parser.parse_args()
    print("CPU here over there, and by start")
    for name in asked.only:
        found = ratios(name, [ROOT, asked.checkout.resolve()], asked.starts, asked.turns)
        print(f"{name:<14} {statistics.median(found):.3f}   {' '.join(f'{one:.3f}' for one in found)}", flush=True)


if __name__ == "__main__":
    main()
