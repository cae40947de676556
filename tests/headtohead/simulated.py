"""Matches in virtual time: the released router places every request of simulated engines (`rival.py`), ours decides
with its own scheduler. Engines are those of the comparison. Other work on the machine changes nothing, and four minutes
take one; but CPU time and memory are not measured, and a router's own timers run in real time, so that no tree is
evicted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from math import inf
from typing import NamedTuple

from router.config.schema import PolicyConfig
from router.errors import WarmrouteError
from router.lab.engine_profile import EngineProfile
from router.lab.rng import Rng
from router.lab.simulator.event_queue import EventQueue
from router.lab.simulator.outcome import SimulationFigures, SimulationOutcome, compute_figures
from router.lab.simulator.router import SimulatedRouter
from router.lab.simulator.run import simulate
from router.lab.simulator.scenario import EventLags, InstanceFailure, ReplicaLink, Scenario, Trouble
from router.lab.workloads.model import Session, Workload
from router.scheduling.policy.policy import NamedPicker, Policy, WeightedScorer
from scorers.best import Best
from tests.agreement.served import policy
from tests.bench.routers import Running
from tests.headtohead.contenders import OURS, Contender
from tests.headtohead.engines import BLOCK_TOKENS, DECODE_MS, ENGINES, PREFILL_TOKENS_PER_S
from tests.headtohead.held_engines import HeldEngines
from tests.headtohead.loads import Load
from tests.headtohead.match import MatchFigures
from tests.headtohead.rival import Agreement, Rival, RivalRouter

LONG_S, WARM_S = 240.0, 60.0
TAKES_S = 60.0  # in real time, about


class Served(NamedTuple):
    figures: SimulationFigures  # as by `_figures`
    agreement: Agreement


def build_scenario(load: Load, *, events: bool = True) -> Scenario:
    """Return the comparison's engines in virtual time, with the faults of the load. Without `events` a policy knows
    what was sent where, as routers do that read none.
    """
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
    slow = tuple(
        InstanceFailure("slow", number, 0.0, factor=faults.slow)
        for number, faults in load.faults.items()
        if faults.slow != 1.0
    )
    lost = max((faults.drop_events for faults in load.faults.values()), default=0.0)
    return Scenario(
        profile=profile,
        instances=ENGINES,
        block_tokens=BLOCK_TOKENS,
        lags=EventLags() if events else EventLags(events_s=inf),
        trouble=Trouble(slow, events_lost=lost, router_restarts_s=load.restart_at_s),
        routers=load.routers,
        exchange=ReplicaLink() if load.routers > 1 else None,
    )


def serve(contender: Contender, load: Load, workload: Workload, seed: int, copy: Policy | None = None) -> Served:
    """Let a router serve the workload, and examine `copy` at each of its choices. Raises WarmrouteError or OSError if
    it cannot be installed, does not start, or does not place every request.
    """
    scenario = build_scenario(load._replace(routers=1), events=contender.reads_events)
    scenario = replace(scenario, trouble=replace(scenario.trouble, events_lost=0.0))  # `HeldEngines` loses them
    with ExitStack() as opened:
        held = opened.enter_context(HeldEngines(load.blocks, load.faults))
        start = partial(_start, opened, contender, held, load.routers)
        rival = Rival(start, Rng(seed), held, find_sessions(workload, scenario), BLOCK_TOKENS, copy)
        chosen = Policy("rival", (), (WeightedScorer("rival", 1.0, rival),), NamedPicker("best", Best()))
        router_of = partial(RivalRouter, rival)
        outcome = simulate(scenario, chosen, workload, seed=seed, at_once=load.agents, until_s=LONG_S, router=router_of)
    rival.check()
    if rival.agreement.choices != len(outcome):
        raise WarmrouteError(f"{contender.name} placed {rival.agreement.choices} of {len(outcome)} requests")
    return Served(_figures(outcome), rival.agreement)


def _start(opened: ExitStack, contender: Contender, held: HeldEngines, routers: int) -> Sequence[Running]:
    """Return so many running routers, which end with `opened`."""
    return [opened.enter_context(contender.running(held.engines)) for _ in range(routers)]


def serve_alone(alone: PolicyConfig, load: Load, workload: Workload, seed: int, *, events: bool) -> SimulationFigures:
    """Let one of our policies serve the workload."""
    scenario = build_scenario(load, events=events)
    return _figures(simulate(scenario, alone, workload, seed=seed, at_once=load.agents, until_s=LONG_S))


def _figures(outcome: SimulationOutcome) -> SimulationFigures:
    """Return the figures of the requests sent after the first `WARM_S`, with the throughput of the whole time."""
    whole = compute_figures(outcome, until_s=LONG_S)
    return compute_figures(outcome, since_s=WARM_S, until_s=LONG_S)._replace(requests_per_s=whole.requests_per_s)


def find_sessions(workload: Workload, scenario: Scenario) -> Mapping[str, Session]:
    """Return all sessions by the pseudonyms that policies get."""
    views = SimulatedRouter(policy("warm"), scenario, EventQueue().clock, seed=0).scheduler.view_builder
    return {views.session_pseudonym(str(one.number)): one for one in workload.all_sessions()}


def play(contender: Contender, load: Load, seed: int) -> MatchFigures:
    """Play a match. Raises WarmrouteError or OSError for a router that cannot be installed or started."""
    workload = load.make(seed)
    if contender.name == OURS:
        found = serve_alone(policy("warm"), load, workload, seed, events=True)
    else:
        found = serve(contender, load, workload, seed).figures
    return MatchFigures(
        turns_per_s=found.requests_per_s,
        ttft_p50_s=found.ttft_p50_s,
        ttft_p90_s=found.ttft_p90_s,
        ttft_p99_s=found.ttft_p99_s,
        hit_share=found.local_share,
        failed=found.failed + found.shed,
    )
