"""Cells and what they come to, for tests of the command."""

from __future__ import annotations

from router.config.schema import Plugin, Policy, WeightedPlugin
from router.testbed.engine_profile import Profile
from router.testbed.simulator.outcome import Figures, Limits
from router.testbed.simulator.scenario import Lags, Trouble
from router.testbed.sweep.cells import Cell, Load, Measured, Source
from router.testbed.sweep.fleets import Fleet

PROFILE = Profile(
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
BUSY = Load("rho", 0.9)
RULES = Policy(scorers=[WeightedPlugin(name="least_requests")], picker=Plugin(name="best"))


def a_cell(
    policy: str = "warm",
    *,
    instances: int = 8,
    pool: str = "off",
    trouble: tuple[str, Trouble] = ("off", Trouble()),
    load: Load = BUSY,
    seed: int = 1,
) -> Cell:
    fleet = Fleet(instances, pool=pool, trouble=trouble[0])
    return Cell(
        policy=policy,
        rules=RULES,
        fleet=fleet,
        scenario=fleet.scenario(PROFILE, Lags(), trouble[1]),
        source=Source("tools"),
        load=load,
        seed=seed,
        limits=Limits(),
    )


def some_figures(**known: float | None) -> Figures:
    plain: dict[str, float | None] = dict.fromkeys(Figures._fields, 1.0)
    return Figures(**plain | {"shed": 0, "failed": 0, "host_share": 0.0, "pool_share": 0.0} | known)  # type: ignore[arg-type]


def a_result(cell: Cell | None = None, rate: float | None = 4.0, **known: float | None) -> Measured:
    return Measured(cell or a_cell(), rate, some_figures(**known), 100.0, 50, 0, 0)
