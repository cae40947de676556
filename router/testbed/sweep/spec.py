"""What the command line asks for, checked as a whole, and the cells that follow from it.

Every problem is found before the first cell runs, and all of them are told at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Literal, TypeVar

from router.errors import ConfigError
from router.testbed.engine_profile import EngineProfile
from router.testbed.simulator.outcome import ServiceLimits
from router.testbed.simulator.scenario import Scenario
from router.testbed.sweep import faults, option_values, policies, profiles
from router.testbed.sweep.cells import LoadLevel, SweepCell, WorkloadSource
from router.testbed.sweep.fleets import FleetOption
from router.testbed.workloads.source import WorkloadSpec as Size

T = TypeVar("T")

POLICIES = ("warm", "least_requests", "round_robin")
WORKLOAD = "codex"
PROFILE = "qwen3-32b-2xh100"
RHO, SESSIONS = 0.9, 8.0  # the load of an open workload, and sessions per instance of a closed loop, if none is given
LOADS: Mapping[Literal["rate", "rho", "sessions"], str] = {
    "rate": "--rate",
    "rho": "--rho",
    "sessions": "--sessions-per-instance",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSpec:
    """As on the command line; lists are text with commas."""

    policies: Sequence[str] = POLICIES
    policies_dir: Path | None = None
    workload: str = WORKLOAD
    requests: int | None = None
    sessions: int | None = None
    scale: float = 1.0  # of all lengths
    think: float = 1.0  # of all pauses
    instances: str = "8"
    prefills: int = 0
    profile: str = PROFILE
    kv_tokens: int | None = None
    pool: str = option_values.OFF
    host_memory: str = option_values.OFF
    rate: str | None = None
    rho: str | None = None
    sessions_per_instance: str | None = None
    staggered: bool = True
    admission: bool = False
    lags: str = "50:250"
    routers: int = 1
    trouble: str = option_values.OFF
    seeds: int = 1
    first_seed: int = 1
    warmup_s: float = 0.0
    until_s: float | None = None
    ttft_limit_s: float = 2.0
    tpot_limit_s: float = 0.1


def make_cells(asked: SweepSpec, told: Callable[[str], None]) -> list[SweepCell]:
    """Seeds outermost, policies innermost: a worker then keeps its workload for many cells.

    `told` hears of lines of a trace that cannot be used. Raises ConfigError with all that is wrong, one a line.
    """
    source = WorkloadSource(
        asked.workload, Size(requests=asked.requests, sessions=asked.sessions, tokens=asked.scale, think=asked.think)
    )
    problems: list[str] = []

    def tried(make: Callable[[], T]) -> T | None:
        try:
            return make()
        except ConfigError as wrong:
            problems.append(str(wrong))
            return None

    rules = tried(lambda: policies.load(asked.policies, asked.policies_dir))
    fleets = tried(lambda: _fleets(asked))
    closed = tried(lambda: source.workload(asked.first_seed, told).is_closed)
    loads = None if closed is None else tried(lambda: _loads(asked, closed))
    if asked.until_s is not None and asked.until_s <= asked.warmup_s:
        problems.append(f"--until: {asked.until_s:g} s is not after --warmup, {asked.warmup_s:g} s: nothing is counted")
    if problems or rules is None or fleets is None or loads is None:
        raise ConfigError("\n".join(problems))
    return [
        SweepCell(
            policy=policy,
            rules=own,
            fleet=fleet,
            scenario=scenario,
            source=source,
            load=load,
            seed=seed,
            limits=ServiceLimits(asked.ttft_limit_s, asked.tpot_limit_s),
            staggered=asked.staggered,
            since_s=asked.warmup_s,
            until_s=asked.until_s,
        )
        for seed in range(asked.first_seed, asked.first_seed + asked.seeds)
        for fleet, scenario in fleets
        for load in loads
        for policy, own in rules.items()
    ]


def _fleets(asked: SweepSpec) -> list[tuple[FleetOption, Scenario]]:
    sizes = [
        option_values.parse_whole("--instances", text)
        for text in option_values.parse_list("--instances", asked.instances)
    ]
    if asked.prefills and asked.prefills >= min(sizes):
        raise ConfigError(
            f"--prefills: {asked.prefills} of {min(sizes)} instances leave none to decode; "
            f"give at most {min(sizes) - 1}, or more --instances"
        )
    if asked.routers > min(sizes):
        raise ConfigError(f"--routers: {asked.routers} routers for {min(sizes)} instances; give at most {min(sizes)}")
    pools = option_values.parse_list("--pool", asked.pool)
    memories = option_values.parse_list("--host-memory", asked.host_memory)
    suffered = faults.load_troubles(asked.trouble)
    for name, trouble in suffered.items():
        faults.check_possible(
            name, trouble, instances=min(sizes), prefills=asked.prefills, pooled=pools != [option_values.OFF]
        )
    profile, lags = _profile(asked), option_values.parse_lags(asked.lags)
    fleets = [
        FleetOption(size, asked.prefills, pool, memory, asked.admission, asked.routers, trouble)
        for size, pool, memory, trouble in product(sizes, pools, memories, suffered)
    ]
    return [(fleet, fleet.scenario(profile, lags, suffered[fleet.trouble])) for fleet in fleets]


def _profile(asked: SweepSpec) -> EngineProfile:
    read = profiles.load(asked.profile)
    return read if asked.kv_tokens is None else replace(read, kv_tokens=asked.kv_tokens)


def _loads(asked: SweepSpec, closed: bool) -> list[LoadLevel]:
    said = {"rate": asked.rate, "rho": asked.rho, "sessions": asked.sessions_per_instance}
    given = [(kind, option, text) for kind, option in LOADS.items() if (text := said[kind]) is not None]
    if len(given) > 1:
        raise ConfigError(f"{given[0][1]} and {given[1][1]} both say how much comes at once: give one of them")
    if not given:
        return [LoadLevel("sessions", SESSIONS) if closed else LoadLevel("rho", RHO)]
    ((kind, option, text),) = given
    if closed and kind != "sessions":
        raise ConfigError(
            f"{option}: {asked.workload} is a closed loop, whose rate follows from the answers; "
            f"say how many sessions are at work with {LOADS['sessions']}"
        )
    if not closed and kind == "sessions":
        raise ConfigError(
            f"{option}: {asked.workload} is an open workload, whose requests wait for nobody; "
            f"say how fast they come with {LOADS['rho']} or {LOADS['rate']}"
        )
    return [
        LoadLevel(kind, option_values.parse_number(option, part)) for part in option_values.parse_list(option, text)
    ]
