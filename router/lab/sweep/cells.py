"""One cell of a comparison: a policy on a fleet under a load with one seed; its result, or why it failed.

These values travel to worker processes and back. A load defines what "more" means for a workload: an open one is
played faster, a closed loop has more concurrent sessions. A recorded load is that of a trace's own times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from router.config.schema import PolicyConfig
from router.config.sections.admission import AdmissionConfig
from router.lab.engine_profile import EngineProfile
from router.lab.simulator.outcome import ServiceLimits, SimulationFigures, SimulationOutcome, compute_figures
from router.lab.simulator.scenario import EventLags, LinkSpeed, Scenario, StoreScenario, Trouble
from router.lab.sweep.options import OFF, parse_exchange, parse_memory
from router.lab.workloads.model import Workload
from router.lab.workloads.source import WorkloadSpec, load_workload

SHARE = 4  # size of a pool or host memory, if not given, as a multiple of the GPU memory that it serves


class FleetOption(NamedTuple):
    """A fleet as the text of its options, which names a table, a chart and a cell. Cells with equal texts are
    compared.

    A size omitted in `pool` or `host_memory` grows with the fleet. Fleets of several sizes then have the same text
    for this option, so that a chart can draw hits over the fleet's size.
    """

    instances: int
    prefills: int = 0
    pool: str = OFF
    host_memory: str = OFF
    admission: bool = False
    routers: int = 1
    trouble: str = OFF
    exchange: str = OFF  # between several routers
    sticky: bool = False

    def __str__(self) -> str:
        return f"{self.instances:,} instance{'' if self.instances == 1 else 's'}, {self.beside}"

    @property
    def beside(self) -> str:
        """Description without the size. Options that are off are omitted, except for the pool."""
        parts = [
            f"{self.prefills} of them prefill" if self.prefills else "",
            _describe("pool", self.pool) or "no pool",
            _describe("host memory", self.host_memory),
            "admission" if self.admission else "",
            _describe_routers(self.routers, self.exchange, self.sticky),
            "" if self.trouble == OFF else f"trouble {self.trouble}",
        ]
        return ", ".join(part for part in parts if part)

    def scenario(self, profile: EngineProfile, lags: EventLags, trouble: Trouble) -> Scenario:
        """Return the scenario. `trouble` is the trouble that the option names. Raises ConfigError."""
        return Scenario(
            profile=profile,
            instances=self.instances,
            store=_store("--pool", self.pool, self.instances * profile.kv_tokens),
            host=_store("--host-memory", self.host_memory, profile.kv_tokens),
            lags=lags,
            trouble=trouble,
            routers=self.routers,
            exchange=parse_exchange(self.exchange),
            sticky=self.sticky,
            prefills=self.prefills,
            admission=AdmissionConfig(enabled=True) if self.admission else None,
        )


def _store(option: str, text: str, gpu_tokens: int) -> StoreScenario | None:
    memory = parse_memory(option, text)
    if memory is None:
        return None
    tokens = SHARE * gpu_tokens if memory.tokens is None else memory.tokens
    return StoreScenario(tokens, LinkSpeed(memory.tokens_per_s))


def _describe(what: str, text: str) -> str:
    memory = parse_memory(what, text)
    if memory is None:
        return ""
    size = "" if memory.tokens is None else f" of {memory.tokens:,} tokens"
    return f"{what}{size} at {memory.tokens_per_s:,.0f} tokens/s"


def _describe_routers(routers: int, exchange: str, sticky: bool) -> str:
    if routers == 1:
        return ""
    sharing = "share nothing"
    if (link := parse_exchange(exchange)) is not None:
        lost = f", {link.lost * 100:g} % lost" if link.lost else ""
        sharing = f"share all in {link.delay_s * 1e3:g} ms{lost}"
    return f"{routers} routers ({sharing}{', sticky' if sticky else ''})"


class WorkloadSource(NamedTuple):
    """A workload before it is built: a preset or a file, and its size."""

    name: str
    size: WorkloadSpec = WorkloadSpec()

    def workload(self, seed: int, on_unusable: Callable[[str], None]) -> Workload:
        """Build the workload. `on_unusable` is called with each unusable line of a file."""
        return load_workload(self.name, seed=seed, on_unusable=on_unusable, **self.size._asdict())


class LoadLevel(NamedTuple):
    """The offered load: arrivals per time, or sessions in progress at once."""

    kind: Literal["rate", "recorded", "rho", "sessions"]
    value: float  # requests per second, for both kinds | rho of lab/workloads/offered_load.py | sessions per instance

    def __str__(self) -> str:
        match self.kind:
            case "rate":
                return f"{self.value:,.4g} requests/s"
            case "recorded":
                return f"{self.value:,.4g} requests/s as recorded" if self.value else "all requests at once as recorded"
            case "rho":
                return f"rho {self.value:.3g}"
            case "sessions":
                return f"{self.value:,.4g} sessions per instance"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepCell:
    policy: str
    rules: PolicyConfig
    fleet: FleetOption
    scenario: Scenario  # made from `fleet`
    source: WorkloadSource
    load: LoadLevel
    seed: int
    limits: ServiceLimits
    staggered: bool = True  # closed loop: the first sessions begin at a random turn
    since_s: float = 0.0  # virtual time before which nothing is counted
    until_s: float | None = None  # virtual time after which nothing is sent or counted; None: to the end

    @property
    def name(self) -> str:
        return f"{self.policy}, {self.fleet}, {self.load}, seed {self.seed}"


class CellResult(NamedTuple):
    """The result of a cell, independent of the machine that computed it."""

    cell: SweepCell
    requests_per_s: float | None  # arriving, for an open loop; None: a closed loop
    figures: SimulationFigures
    took_s: float  # virtual
    decisions: int
    preemptions: int
    double_bookings: int


class CellFailure(NamedTuple):
    what: str
    reason: str


def measure_cell(
    cell: SweepCell, outcome: SimulationOutcome, requests_per_s: float | None, last_s: float | None
) -> CellResult:
    """Return the result of `cell`. `last_s` is the arrival time of an open workload's last request.

    The measured window ends at `last_s` unless the cell sets an end: requests that end later would show how long
    the fleet takes to become empty, not how much it serves.
    """
    until_s = last_s if cell.until_s is None else cell.until_s
    return CellResult(
        cell,
        requests_per_s,
        compute_figures(outcome, cell.limits, cell.since_s, until_s),
        outcome.took_s,
        outcome.decisions,
        outcome.preemptions,
        outcome.double_bookings,
    )
