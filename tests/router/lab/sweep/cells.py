"""Cells and what they come to, for tests of the command."""

from __future__ import annotations

from router.config.schema import PolicyConfig, WeightedPluginConfig
from router.config.sections.base import PluginConfig
from router.lab.engine_profile import EngineProfile
from router.lab.simulator.outcome import ServiceLimits, SimulationFigures
from router.lab.simulator.scenario import EventLags, Trouble
from router.lab.sweep.cells import CellResult, FleetOption, LoadLevel, SweepCell, WorkloadSource

PROFILE = EngineProfile(
    name="small",
    kv_tokens=200_000,
    kv_bytes_per_token=1000.0,
    us_per_token=50.0,
    ns_per_pair=1.0,
    us_per_decode=50.0,
    weights_ms=5.0,
    ns_per_context_token=50.0,
    step_ms=1.0,
)
BUSY = LoadLevel("rho", 0.9)
RULES = PolicyConfig(scorers=[WeightedPluginConfig(name="least_requests")], picker=PluginConfig(name="best"))


def a_cell(
    policy: str = "warm",
    *,
    instances: int = 8,
    pool: str = "off",
    trouble: tuple[str, Trouble] = ("off", Trouble()),
    load: LoadLevel = BUSY,
    seed: int = 1,
) -> SweepCell:
    fleet = FleetOption(instances, pool=pool, trouble=trouble[0])
    return SweepCell(
        policy=policy,
        rules=RULES,
        fleet=fleet,
        scenario=fleet.scenario(PROFILE, EventLags(), trouble[1]),
        source=WorkloadSource("tools"),
        load=load,
        seed=seed,
        limits=ServiceLimits(),
    )


def some_figures(**known: float | None) -> SimulationFigures:
    plain: dict[str, float | None] = dict.fromkeys(SimulationFigures._fields, 1.0)
    return SimulationFigures(**plain | {"shed": 0, "failed": 0, "host_share": 0.0, "pool_share": 0.0} | known)  # type: ignore[arg-type]


def a_result(cell: SweepCell | None = None, rate: float | None = 4.0, **known: float | None) -> CellResult:
    return CellResult(cell or a_cell(), rate, some_figures(**known), 100.0, 50, 0, 0)
