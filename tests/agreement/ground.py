"""From a cell and a seed to what `simulate` takes: the scenario, the workload and the window that is measured.

    open    rho sets how fast the requests come (`router/testbed/workloads/offered_load.py`); the warm-up is as many
    requests as fill the
            caches; a seed takes another stretch of the trace, or another draw of the generator
    closed  sessions x instances at once, met in mid-session (`staggered`); the warm-up is as long as computing all
            their contexts once takes, and two minutes

Profile of all cells: Qwen3-32B on two H100, but with room for a million tokens, so that 24 agents are its edge.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from router.testbed.engine_profile import EngineProfile
from router.testbed.simulator.scenario import EventLags, InstanceFailure, LinkSpeed, Scenario, StoreScenario, Trouble
from router.testbed.sweep import options
from router.testbed.workloads import offered_load
from router.testbed.workloads import source as workload
from router.testbed.workloads.model import Workload
from tests.agreement import trace
from tests.agreement.cells import KV_TOKENS, Cell
from tests.agreement.windows import Window, stretch

PROFILE = "qwen3-32b-2xh100"
POOL_TOKENS = 4_000_000
"""Of the pool per instance: 1 TiB at 256 KB a token."""

CONTEXT_TOKENS = 46_000
"""Mean prompt of the coding agents."""

CYCLE_S = 30.0
"""What a turn of an agent takes about, thinking included: for sizes of windows only."""

FILLING = 250
"""Requests per instance that the warm-up has at most."""


class Effort(NamedTuple):
    """How long cells are measured: at least so many virtual seconds, and at least for about so many requests.

    A busy engine's answers take a minute or two, and what ends within the window is its throughput: the window must be
    a few times as long. The more instances, the less chance has to say: of more than 16 half as long is enough.
    """

    name: str
    requests: int
    window_s: float

    def lasts_s(self, instances: int, per_s: float) -> float:
        return max(self.window_s / (2 if instances > 16 else 1), self.requests / per_s)


REDUCED, FULL = Effort("reduced", 1500, 240.0), Effort("full", 3000, 600.0)


class Ground(NamedTuple):
    scenario: Scenario
    workload: Workload
    at_once: int | None
    window: Window


def ground(cell: Cell, seed: int, effort: Effort) -> Ground:
    """Raises NoTrace where the cell needs it and it is not here."""
    at_once = round(cell.load) * cell.instances if cell.closed else None
    served, window = _agents(cell, seed, effort) if cell.closed else _stream(cell, seed, effort)
    return Ground(_scenario(cell, window), served, at_once, window)


@lru_cache(maxsize=1)
def profile() -> EngineProfile:
    return replace(options.load_profile(PROFILE), kv_tokens=KV_TOKENS)


def _scenario(cell: Cell, window: Window) -> Scenario:
    store = StoreScenario(POOL_TOKENS * cell.instances, LinkSpeed(float(cell.pool))) if cell.pool else None
    lags, trouble = _trouble(cell.trouble, window)
    return Scenario(profile=profile(), instances=cell.instances, store=store, lags=lags, trouble=trouble)


def _trouble(kind: str, window: Window) -> tuple[EventLags, Trouble]:
    """`late`: the router begins while the caches are warm already and half of the warm-up is over."""

    def on(name: str) -> bool:
        return kind in (name, "all")

    lags = EventLags(
        events_s=0.2 if on("lag") else EventLags().events_s, metrics_s=0.5 if on("stale") else EventLags().metrics_s
    )
    return lags, Trouble(
        failures=(InstanceFailure("slow", instance=1, at_s=0.0),) if on("slow") else (),
        events_lost=0.05 if on("lost") else 0.0,
        router_starts_s=window.since_s / 2 if on("late") else 0.0,
    )


@lru_cache(maxsize=2)
def _source(name: str, seed: int, requests: int) -> Workload:
    if name == "conversation":
        return workload.load_workload(str(trace.conversation()), seed=0)
    return workload.load_workload(name, seed=seed, rate=1.0, requests=requests)


@lru_cache(maxsize=4)
def _demand(name: str, seed: int) -> offered_load.OfferedLoad:
    return offered_load.measure_demand(_source(name, seed, 5000))


@lru_cache(maxsize=1)
def _stream(cell: Cell, seed: int, effort: Effort) -> tuple[Workload, Window]:
    own_seed = 0 if cell.workload == "conversation" else seed
    asked = _demand(cell.workload, own_seed)
    fill = min(FILLING, math.ceil(KV_TOKENS / (asked.prompt_tokens + asked.output_tokens)))
    per_s = cell.load * cell.instances * asked.capacity(profile())
    warm, measured = fill * cell.instances, math.ceil(per_s * effort.lasts_s(cell.instances, per_s))
    source = _source(cell.workload, own_seed, warm + measured)
    first, spread_s = (1009 * seed, trace.ROUNDED_S) if cell.workload == "conversation" else (0, 0.0)
    faster = offered_load.speed_factor(asked, profile(), cell.instances, cell.load)
    served = stretch(source, first, warm + measured, faster, spread_s, seed)
    return served, Window(served.sessions[warm].start_s, served.sessions[-1].start_s)


@lru_cache(maxsize=1)
def _agents(cell: Cell, seed: int, effort: Effort) -> tuple[Workload, Window]:
    at_once = round(cell.load) * cell.instances
    since_s = 120.0 + cell.load * profile().prefill_s(CONTEXT_TOKENS, 0)
    until_s = since_s + effort.lasts_s(cell.instances, at_once / CYCLE_S)
    sessions = at_once * (1 + math.ceil(until_s / 600))
    return workload.load_workload(cell.workload, seed=seed, sessions=sessions), Window(since_s, until_s)
