"""From a cell and a seed to what `simulate` takes: the scenario, the workload and the window that is measured.

    open    rho sets how fast the requests come (`router/lab/workloads/offered_load.py`): the load of all instances
            that are ever there, by the speed of each; the warm-up is as many requests as fill the caches, and as long
            as two answers take; a seed takes another stretch of the trace, or another draw of the generator
    agents  sessions x instances at once, met in mid-session (`staggered`); the warm-up is as long as computing all
            their contexts once takes, and two minutes
    mixed   the agents, and a batch job of rho `BATCH_RHO` beside them

Profile of all cells: Qwen3-32B on two H100, with room for a million tokens where the kind of workload says so.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from router.lab.engine_profile import EngineProfile
from router.lab.simulator.scenario import (
    EventLags,
    InstanceFailure,
    LinkSpeed,
    Presence,
    Scenario,
    StoreScenario,
    Trouble,
)
from router.lab.sweep import options
from router.lab.workloads import offered_load
from router.lab.workloads import source as workload
from router.lab.workloads.arrivals import RatePhase, vary_rate
from router.lab.workloads.model import Workload
from tests.agreement import trace
from tests.agreement.cells import Cell
from tests.agreement.kinds import AGENTS, BATCH, LARGE, OPEN, share_fleet
from tests.agreement.windows import Window, stretch

PROFILE = "qwen3-32b-2xh100"
COMPUTE, MEMORY = 989 / 312, 3.35 / 2.04
"""An H100 SXM over an A100 SXM: dense BF16 TFLOPS and TB/s of memory, from NVIDIA's data sheets."""

POOL_TOKENS = 4_000_000
"""Of the pool per instance: 1 TiB at 256 KB a token."""

CYCLE_S = 30.0
"""What a turn of an agent takes about, thinking included: for sizes of windows only."""

SHORTEST_S = 30.0
"""Of any window: a queue needs some seconds to show."""

TOKEN_S = 0.04
"""What a token of an answer takes about on a busy instance: for sizes of windows only."""

CHANGING_S, AGENTS_S = 120.0, 120.0
"""What a window lasts at least where the rate or the fleet changes, and with agents, who pause."""

BATCH_RHO = 0.3

FILLING = 250
"""Requests per instance that fill the caches at most."""

RATES = {
    "day": (RatePhase(40.0, 2 / 3), RatePhase(20.0, 1.0), RatePhase(40.0, 4 / 3), RatePhase(20.0, 1.0)),
    "bursts": (RatePhase(4.0, 3.0), RatePhase(16.0, 0.5)),
}


class Effort(NamedTuple):
    """How long cells are measured: for `window_s` virtual seconds, within once and twice `requests`.

    A busy engine's answers take a minute or two, and what ends within the window is its throughput: where answers are
    long, `least_s` lengthens the window.
    """

    name: str
    requests: int
    window_s: float

    def lasts_s(self, per_s: float, least_s: float = 0.0) -> float:
        return max(least_s, self.requests / per_s, min(self.window_s, 2 * self.requests / per_s))


REDUCED, FULL = Effort("reduced", 1000, 240.0), Effort("full", 3000, 600.0)


class Ground(NamedTuple):
    scenario: Scenario
    workload: Workload
    at_once: int | None
    window: Window


def ground(cell: Cell, seed: int, effort: Effort) -> Ground:
    """Raises NoTrace where the cell needs it and it is not here."""
    at_once = None if not cell.of_agents or cell.workload == "mixed" else round(cell.load) * cell.instances
    served, window = _agents(cell, seed, effort) if cell.of_agents else _stream(cell, seed, effort)
    return Ground(_scenario(cell, window), served, at_once, window)


@lru_cache(maxsize=2)
def profile(kv_tokens: int | None = LARGE) -> EngineProfile:
    """`kv_tokens` None: the profile's own."""
    own = options.load_profile(PROFILE)
    return own if kv_tokens is None else replace(own, kv_tokens=kv_tokens)


def older(newer: EngineProfile) -> EngineProfile:
    """The same model and memory on GPUs of the generation before: A100 instead of H100."""
    return replace(
        newer,
        name=f"{newer.name}, older",
        us_per_token=newer.us_per_token * COMPUTE,
        ns_per_pair=newer.ns_per_pair * COMPUTE,
        us_per_decode=newer.us_per_decode * COMPUTE,
        weights_ms=newer.weights_ms * MEMORY,
        ns_per_context_token=newer.ns_per_context_token * MEMORY,
    )


def _profiles(cell: Cell) -> tuple[EngineProfile, ...]:
    """One, or two that instances have in turn."""
    own = profile(LARGE if cell.of_agents else OPEN[cell.workload].kv_tokens)
    return (own, older(own)) if cell.fleet == "speeds" else (own,)


def _scenario(cell: Cell, window: Window) -> Scenario:
    store = StoreScenario(POOL_TOKENS * cell.instances, LinkSpeed(float(cell.pool))) if cell.pool else None
    lags, trouble = _trouble(cell.trouble, window)
    profiles = _profiles(cell)
    return Scenario(
        profile=profiles[0],
        profiles=profiles,
        instances=cell.instances,
        presences=_presences(cell, window),
        store=store,
        lags=lags,
        trouble=trouble,
    )


def _presences(cell: Cell, window: Window) -> tuple[Presence, ...]:
    """The last instances come or go: one as the window begins, or a quarter of them after a third of it."""
    quarter = range(cell.instances - max(1, round(cell.instances / 4)), cell.instances)
    third_s = window.since_s + (window.until_s - window.since_s) / 3
    match cell.fleet:
        case "cold":
            return (Presence(cell.instances - 1, joins_s=window.since_s),)
        case "grows":
            return tuple(Presence(number, joins_s=third_s) for number in quarter)
        case "shrinks":
            return tuple(Presence(number, leaves_s=third_s) for number in quarter)
        case _:
            return ()


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
    preset = OPEN[name].preset
    if preset is None:
        return workload.load_workload(str(trace.conversation()), seed=0)
    return replace(preset, requests=requests, per_s=1.0).workload(seed)


@lru_cache(maxsize=4)
def _demand(name: str, seed: int) -> offered_load.OfferedLoad:
    return offered_load.measure_demand(_source(name, seed, 5000))


def _capacity(cell: Cell, asked: offered_load.OfferedLoad) -> float:
    """Requests per second of all instances that are ever there."""
    profiles = _profiles(cell)
    return sum(asked.capacity(profiles[number % len(profiles)]) for number in range(cell.instances))


@lru_cache(maxsize=1)
def _stream(cell: Cell, seed: int, effort: Effort) -> tuple[Workload, Window]:
    traced = OPEN[cell.workload].preset is None
    own_seed = 0 if traced else seed
    asked = _demand(cell.workload, own_seed)
    per_s = cell.load * _capacity(cell, asked)
    fill = min(FILLING, math.ceil(_profiles(cell)[0].kv_tokens / (asked.prompt_tokens + asked.output_tokens)))
    answer_s = asked.output_tokens * TOKEN_S
    warm = max(fill * cell.instances, math.ceil(per_s * 2 * answer_s))
    least_s = max(3 * answer_s, CHANGING_S if cell.rate or cell.fleet else SHORTEST_S)
    measured = math.ceil(per_s * effort.lasts_s(per_s, least_s))
    source = _source(cell.workload, own_seed, warm + measured)
    first, spread_s = (1009 * seed, trace.ROUNDED_S) if traced else (0, 0.0)
    served = stretch(source, first, warm + measured, per_s / asked.requests_per_s, spread_s, seed)
    if cell.rate:
        served = vary_rate(served, RATES[cell.rate])
    return served, Window(served.sessions[warm].start_s, served.sessions[-1].start_s)


@lru_cache(maxsize=1)
def _agents(cell: Cell, seed: int, effort: Effort) -> tuple[Workload, Window]:
    kind = AGENTS[cell.workload]
    at_once = round(cell.load) * cell.instances
    since_s = 120.0 + cell.load * profile().prefill_s(kind.context_tokens, 0)
    until_s = since_s + effort.lasts_s(at_once / CYCLE_S, AGENTS_S)
    if cell.workload == "mixed":
        asked = offered_load.measure_demand(BATCH.workload(seed))
        return share_fleet(at_once, BATCH_RHO * _capacity(cell, asked), until_s, seed), Window(since_s, until_s)
    sessions = at_once * (1 + math.ceil(until_s / 600))
    return workload.load_workload(kind.preset, seed=seed, sessions=sessions), Window(since_s, until_s)
