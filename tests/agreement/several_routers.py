"""Several routers against one. Nobody has published it, so the bar is ours: hits within 1 point, p90 TTFT within 5 %.

Each request comes to one of 2, 4 or 8 routers by chance, `warm` decides, and the routers tell each other what they book
within 1 ms and every 20 ms (`replicas`), or nothing. Beside one router: open loops with shared prompts on 16 instances,
and a closed loop of agents on 8, whose sessions outgrow the caches, so that each miss makes another one. Means over
seeds of the whole runs, from an empty fleet to the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any, NamedTuple

from router.lab.simulator.outcome import SimulationFigures
from router.lab.sweep.cells import CellResult
from router.lab.sweep.options import OFF
from router.lab.sweep.parallel import SweepWorker
from router.lab.sweep.spec import SweepSpec, make_cells
from tests.agreement.row import Line, Row, ratio

POINTS, SHARE = 1.0, 0.05
SEEDS = 3
TOLD = "1"
LOADS: Mapping[str, Mapping[str, Any]] = {
    "tools, rho 0.9": {"workload": "tools", "requests": 3000, "instances": "16", "rho": "0.9"},
    "groups, rho 1.1": {"workload": "groups", "requests": 2000, "instances": "16", "rho": "1.1"},
    "codex, 8 agents each": {"workload": "codex", "sessions": 160, "instances": "8"},
}


class Front(NamedTuple):
    routers: int
    exchange: str

    def __str__(self) -> str:
        return f"{self.routers} routers{'' if self.exchange != OFF else ' that share nothing'}"


def measure(reduced: bool, say: Callable[[str], None]) -> list[Line]:
    found = []
    for load, options in LOADS.items():
        spec = SweepSpec(
            policies=["warm"],
            routers="1,4" if reduced else "1,2,4,8",
            exchange=f"{TOLD},{OFF}",
            seeds=1 if reduced else SEEDS,
            **options,
        )
        worker, results = SweepWorker(lambda _: None, lambda: False), []
        for cell in make_cells(spec, say):
            say(cell.name)
            results.append(worker.run(cell))
        found += lines(load, [one for one in results if isinstance(one, CellResult)])
    return found


def lines(load: str, results: list[CellResult]) -> list[Line]:
    """Return hits and p90 TTFT of several routers against those of one; the bar is for those that share."""
    by_front: dict[Front, list[SimulationFigures]] = {}
    for one in results:
        fleet = one.cell.fleet
        by_front.setdefault(Front(fleet.routers, fleet.exchange), []).append(one.figures)
    alone = by_front.pop(Front(1, OFF))
    made = []
    for front, figures in by_front.items():
        bar = front.exchange != OFF
        hits = 100 * (_mean(figures, _hits) - _mean(alone, _hits))
        p90 = ratio(_mean(figures, _p90_s), _mean(alone, _p90_s))
        made += [
            Line(f"{load}: hits of {front}, against one", "0", hits, -POINTS if bar else None, unit="points"),
            Line(f"{load}: p90 TTFT of {front}, over one", "1", p90, None, 1 + SHARE if bar else None, unit="x"),
        ]
    return made


def _mean(figures: list[SimulationFigures], of: Callable[[SimulationFigures], float | None]) -> float:
    return fmean(of(one) or 0.0 for one in figures)


def _hits(figures: SimulationFigures) -> float | None:
    return figures.hit_share


def _p90_s(figures: SimulationFigures) -> float | None:
    return figures.ttft_p90_s


ROWS = (Row("routers", "Several routers against one (`replicas`)", measure, 400, 75),)
