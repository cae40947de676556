"""The options of a sweep, checked as a whole, and the resulting cells.

All problems are found before the first cell runs, and are reported together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from router.errors import ConfigError
from router.lab.simulator.outcome import ServiceLimits
from router.lab.simulator.scenario import Scenario
from router.lab.sweep import options
from router.lab.sweep.cells import FleetOption, LoadLevel, SweepCell, WorkloadSource
from router.lab.workloads.model import Workload
from router.lab.workloads.offered_load import arrival_rate
from router.lab.workloads.presets import PRESETS
from router.lab.workloads.source import WorkloadSpec

T = TypeVar("T")

RHO, SESSIONS = 0.9, 8.0  # default load of an open preset, and default sessions per instance of a closed loop
LOADS: Mapping[Literal["rate", "rho", "sessions"], str] = {
    "rate": "--rate",
    "rho": "--rho",
    "sessions": "--sessions-per-instance",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSpec:
    """The options as on the command line, lists as text with commas. Field names are JSON keys of the results."""

    policies: Sequence[str] = ("warm", "least_requests", "round_robin")
    policies_dir: Path | None = None
    workload: str = "codex"
    requests: int | None = None
    sessions: int | None = None
    scale: float = 1.0  # factor on all lengths
    think: float = 1.0  # factor on all pauses
    instances: str = "8"
    prefills: int = 0
    profile: str = "qwen3-32b-2xh100"
    kv_tokens: int | None = None
    pool: str = options.OFF
    host_memory: str = options.OFF
    rate: str | None = None
    rho: str | None = None
    sessions_per_instance: str | None = None
    staggered: bool = True
    admission: bool = False
    lags: str = "50:250"
    routers: str = "1"
    exchange: str = "1"
    sticky: bool = False
    trouble: str = options.OFF
    seeds: int = 1
    first_seed: int = 1
    warmup_s: float = 0.0
    until_s: float | None = None
    ttft_limit_s: float = 2.0
    tpot_limit_s: float = 0.1


class GivenLoad(NamedTuple):
    """An option that sets the load, as given."""

    kind: Literal["rate", "rho", "sessions"]
    option: str
    text: str


def given_loads(spec: SweepSpec) -> list[GivenLoad]:
    """Return the options that set the load; `make_cells` accepts at most one."""
    texts = {"rate": spec.rate, "rho": spec.rho, "sessions": spec.sessions_per_instance}
    return [GivenLoad(kind, option, text) for kind, option in LOADS.items() if (text := texts[kind]) is not None]


def make_cells(spec: SweepSpec, on_unusable: Callable[[str], None]) -> list[SweepCell]:
    """Return the cells, seeds outermost and policies innermost, so that workers reuse a workload for many cells.

    `on_unusable` is called with each unusable line of a trace. Raises ConfigError with a line per
    problem.
    """
    source = WorkloadSource(
        spec.workload, WorkloadSpec(requests=spec.requests, sessions=spec.sessions, tokens=spec.scale, think=spec.think)
    )
    problems: list[str] = []

    def attempt(make: Callable[[], T]) -> T | None:
        try:
            return make()
        except ConfigError as wrong:
            problems.append(str(wrong))
            return None

    rules = attempt(lambda: options.load_policies(spec.policies, spec.policies_dir or options.POLICIES))
    fleets = attempt(lambda: _fleets(spec))
    workload = attempt(lambda: source.workload(spec.first_seed, on_unusable))
    loads = None if workload is None else attempt(lambda: _loads(spec, workload))
    if spec.until_s is not None and spec.until_s <= spec.warmup_s:
        problems.append(f"--until: {spec.until_s:g} s is not after --warmup, {spec.warmup_s:g} s: nothing is counted")
    if problems or rules is None or fleets is None or loads is None:
        raise ConfigError("\n".join(problems))
    limits = ServiceLimits(spec.ttft_limit_s, spec.tpot_limit_s)
    make = partial(
        SweepCell, source=source, limits=limits, staggered=spec.staggered, since_s=spec.warmup_s, until_s=spec.until_s
    )
    return [
        make(policy=policy, rules=own, fleet=fleet, scenario=scenario, load=load, seed=seed)
        for seed in range(spec.first_seed, spec.first_seed + spec.seeds)
        for fleet, scenario in fleets
        for load in loads
        for policy, own in rules.items()
    ]


def _fleets(spec: SweepSpec) -> list[tuple[FleetOption, Scenario]]:
    sizes = [options.parse_whole("--instances", text) for text in options.parse_list("--instances", spec.instances)]
    if spec.prefills and spec.prefills >= min(sizes):
        raise ConfigError(
            f"--prefills: {spec.prefills} of {min(sizes)} instances leave none to decode; "
            f"give at most {min(sizes) - 1}, or more --instances"
        )
    fronts = _fronts(spec, min(sizes))
    pools = options.parse_list("--pool", spec.pool)
    memories = options.parse_list("--host-memory", spec.host_memory)
    troubles = options.load_troubles(spec.trouble)
    for name, trouble in troubles.items():
        options.check_possible(
            name, trouble, instances=min(sizes), prefills=spec.prefills, pooled=pools != [options.OFF]
        )
    profile, lags = options.load_profile(spec.profile), options.parse_lags(spec.lags)
    if spec.kv_tokens is not None:
        profile = replace(profile, kv_tokens=spec.kv_tokens)
    fleets = [
        FleetOption(size, spec.prefills, pool, memory, spec.admission, routers, trouble, exchange, spec.sticky)
        for size, pool, memory, trouble, (routers, exchange) in product(sizes, pools, memories, troubles, fronts)
    ]
    return [(fleet, fleet.scenario(profile, lags, troubles[fleet.trouble])) for fleet in fleets]


def _fronts(spec: SweepSpec, instances: int) -> list[tuple[int, str]]:
    """Return numbers of routers, each with the exchange between them, which is off for one router."""
    counts = [options.parse_whole("--routers", text) for text in options.parse_list("--routers", spec.routers)]
    if max(counts) > instances:
        raise ConfigError(f"--routers: {max(counts)} routers for {instances} instances; give at most {instances}")
    exchanges = options.parse_list("--exchange", spec.exchange)
    for text in exchanges:
        options.parse_exchange(text)
    if spec.admission and max(counts) > 1 and not spec.sticky:
        raise ConfigError(
            "--admission: simulated routers do not exchange which sessions they admitted; "
            "give --sticky, so that all requests of a session come to the same one"
        )
    return [(count, text) for count in counts for text in (exchanges if count > 1 else [options.OFF])]


def _loads(spec: SweepSpec, workload: Workload) -> list[LoadLevel]:
    given = given_loads(spec)
    if len(given) > 1:
        raise ConfigError(f"{given[0].option} and {given[1].option} both set the load: give one of them")
    if not given:
        return [_default_load(spec.workload, workload)]
    ((kind, option, text),) = given
    if workload.is_closed and kind != "sessions":
        raise ConfigError(
            f"{option}: {spec.workload} is a closed loop, whose rate follows from the answers; "
            f"set the number of concurrent sessions with {LOADS['sessions']}"
        )
    if not workload.is_closed and kind == "sessions":
        raise ConfigError(
            f"{option}: {spec.workload} is an open workload, whose requests do not wait for answers; "
            f"set their rate with {LOADS['rho']} or {LOADS['rate']}"
        )
    return [LoadLevel(kind, options.parse_number(option, part)) for part in options.parse_list(option, text)]


def _default_load(name: str, workload: Workload) -> LoadLevel:
    """Return the load of a workload for which no option sets one. A trace has times of its own, the same for every
    fleet; a preset has none that mean anything, so it loads each fleet to a share of itself.
    """
    if workload.is_closed:
        return LoadLevel("sessions", SESSIONS)
    return LoadLevel("rho", RHO) if name in PRESETS else LoadLevel("recorded", arrival_rate(workload))
