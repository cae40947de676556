"""Compare our copies of other routers' rules with the originals, on the same requests and in the same state.

    python -m tests.headtohead.copies [--load NAME ...] [--router NAME ...] [--seed 1] [--requests 2000]

The original, as released, places every request of a simulated fleet (`rival.py`); the copy is examined at each. Then
the copy serves the same load by itself. Engines, loads and their sizes are those of the comparison (`loads.py`), in
virtual time: a router's own timers run in real time, so trees are not evicted here.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from router.errors import WarmrouteError
from router.lab.engine_profile import EngineProfile
from router.lab.simulator.event_queue import EventQueue
from router.lab.simulator.outcome import SimulationFigures, compute_figures
from router.lab.simulator.router import SimulatedRouter
from router.lab.simulator.run import simulate
from router.lab.simulator.scenario import Scenario
from router.lab.workloads.model import Session, Workload
from router.scheduling.policy.policy import NamedPicker, Policy, WeightedScorer, build_policy
from scorers.best import Best
from tests.agreement.served import policy
from tests.bench import routers
from tests.bench.routers import Start
from tests.headtohead.engines import BLOCK_TOKENS, DECODE_MS, ENGINES, PREFILL_TOKENS_PER_S
from tests.headtohead.held_engines import HeldEngines
from tests.headtohead.loads import LOADS, Load
from tests.headtohead.rival import Rival

BAR = 0.95


class Pair(NamedTuple):
    """A router's rule, and the name of our copy of it."""

    name: str
    start: Start
    copy: str


PAIRS: Sequence[Pair] = (
    Pair("vllm-router `cache_aware`", lambda ports, at: routers.rust(ports, at, "cache_aware"), "sglang_threshold"),
    Pair("sglang-router `cache_aware`", lambda ports, at: routers.sglang(ports, at, "cache_aware"), "sglang_threshold"),
    Pair("smg `cache_aware`", lambda ports, at: routers.smg(ports, at, "cache_aware"), "sglang_threshold"),
)
LOADS_WITHOUT_TROUBLE = tuple(load for load in LOADS if not load.faults and load.kill_at_s is None)


class Compared(NamedTuple):
    """`same`: share of the choices in which the copy agrees; the figures are of what each served by itself."""

    pair: str
    load: str
    choices: int
    same: float
    original: SimulationFigures
    copy: SimulationFigures


def build_scenario(load: Load) -> Scenario:
    """Return the comparison's engines in virtual time."""
    profile = EngineProfile(
        name="head to head",
        kv_tokens=load.blocks * BLOCK_TOKENS,
        kv_bytes_per_token=1.0,
        us_per_token=1e6 / PREFILL_TOKENS_PER_S,
        ns_per_pair=0.0,
        us_per_decode=0.0,
        weights_ms=DECODE_MS,
        ns_per_context_token=0.0,
    )
    return Scenario(profile=profile, instances=ENGINES, block_tokens=BLOCK_TOKENS)


def compare(pair: Pair, load: Load, seed: int, requests: int) -> Compared:
    """Let the original and its copy serve the load. Raises WarmrouteError if the original cannot be run."""
    workload, scenario = shorten(load.make(seed), requests), build_scenario(load)
    copy = build_policy(pair.copy, policy(pair.copy))
    sessions = find_sessions(workload, scenario, copy)
    with (
        tempfile.TemporaryDirectory(prefix="warmroute-copies-") as folder,
        HeldEngines(ENGINES) as engines,
        pair.start(engines.ports, Path(folder)) as router,
    ):
        rival = Rival(router.port, engines, copy, sessions, BLOCK_TOKENS)
        chosen = Policy("rival", (), (WeightedScorer("rival", 1.0, rival),), NamedPicker("best", Best()))
        original = simulate(scenario, chosen, workload, seed=seed, at_once=load.agents)
    alone = simulate(scenario, policy(pair.copy), workload, seed=seed, at_once=load.agents)
    figures, agreed = compute_figures(original), rival.agreement
    if agreed.choices != figures.requests:  # what a policy raises is logged, and another one decides
        raise WarmrouteError(f"it placed {agreed.choices} of {figures.requests} requests")
    return Compared(pair.name, load.name, agreed.choices, agreed.same / agreed.choices, figures, compute_figures(alone))


def find_sessions(workload: Workload, scenario: Scenario, of: Policy) -> Mapping[str, Session]:
    """Return all sessions by the pseudonyms that policies get."""
    views = SimulatedRouter(of, scenario, EventQueue().clock, seed=0).scheduler.view_builder
    return {views.session_pseudonym(str(one.number)): one for one in workload.all_sessions()}


def shorten(workload: Workload, requests: int) -> Workload:
    """Return the first sessions of a workload, with at least so many requests if it has them."""
    taken, count = [], 0
    for session in workload.sessions:
        if count >= requests:
            break
        taken.append(session)
        count += sum(len(one.turns) for one in session.family())
    return workload._replace(sessions=tuple(taken))


def table(rows: Sequence[Compared]) -> Table:
    shown = Table(box=box.SIMPLE)
    for name in ("router", "load"):
        shown.add_column(name, no_wrap=True)
    for name in ("choices", "same", "hits", "of the copy", "TTFT p90, s", "of the copy"):
        shown.add_column(name, justify="right")
    for row in rows:
        figures = [f"{one.local_share or 0:.1%}" for one in (row.original, row.copy)]
        figures += [f"{one.ttft_p90_s or 0:.2f}" for one in (row.original, row.copy)]
        shown.add_row(row.pair, row.load, f"{row.choices:,}", f"{row.same:.1%}", *figures)
    return shown


def main() -> int:
    chosen = _arguments()
    console, rows, is_missing = Console(highlight=False), [], False
    for pair in (one for one in PAIRS if chosen.router is None or one.name in chosen.router):
        for load in (one for one in LOADS_WITHOUT_TROUBLE if chosen.load is None or one.name in chosen.load):
            console.print(f"{pair.name}, {load.name} ...")
            try:
                rows.append(compare(pair, load, chosen.seed, chosen.requests))
            except WarmrouteError as why:
                is_missing = True
                console.print(f"{pair.name} is left out: {why}", markup=False)
                break
    console.print(table(rows))
    return int(is_missing or any(row.same < BAR for row in rows))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.headtohead.copies",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [load.name for load in LOADS_WITHOUT_TROUBLE]
    parser.add_argument("--load", action="append", choices=names, metavar="LOAD")
    parser.add_argument("--router", action="append", choices=[one.name for one in PAIRS], metavar="ROUTER")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--requests", type=int, default=2000, help="of each load")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
