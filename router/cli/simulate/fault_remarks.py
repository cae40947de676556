"""What went wrong in cells, in words for whoever reads their tables; and what came too late for cells to suffer it."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from router.testbed.simulator.scenario import InstanceFailure, Trouble
from router.testbed.sweep.cells import CellResult, SweepCell
from router.testbed.sweep.option_values import OFF


class FaultRemark(NamedTuple):
    """One thing that goes wrong."""

    from_s: float
    said: str


def remarks(cells: Sequence[SweepCell], measured: Sequence[CellResult]) -> list[str]:
    """A line per trouble that was asked for, and one for each part of it that some of the cells did not live to see."""
    lines = []
    troubles = {cell.fleet.trouble: cell.scenario.trouble for cell in cells}
    for name, trouble in troubles.items():
        if name == OFF:
            continue
        suffered = parts(trouble)
        lines.append(f"Trouble {name}: {'; '.join(part.said for part in suffered)}.")
        ends_s = [one.took_s for one in measured if one.cell.fleet.trouble == name]
        for part in suffered:
            if missed := sum(end_s <= part.from_s for end_s in ends_s):
                lines.append(f"Too late for {missed} of its {len(ends_s)} cells: {part.said}.")
    return lines


def parts(trouble: Trouble) -> list[FaultRemark]:
    """Each thing in words, with when it begins."""
    found = [_failure(failure) for failure in trouble.failures]
    if trouble.events_lost:
        found.append(FaultRemark(0.0, f"{trouble.events_lost * 100:.3g} % of all event batches are lost"))
    found += [
        FaultRemark(from_s, f"the pool is away {_when(from_s, until_s)}") for from_s, until_s in trouble.pool_away
    ]
    if trouble.router_starts_s:
        found.append(
            FaultRemark(0.0, f"the router starts at {trouble.router_starts_s:g} s, before that requests take turns")
        )
    return found


def _failure(failure: InstanceFailure) -> FaultRemark:
    what = "is down" if failure.kind == "down" else f"takes {failure.factor:g} times as long per step"
    return FaultRemark(failure.at_s, f"instance {failure.instance} {what} {_when(failure.at_s, failure.until_s)}")


def _when(from_s: float, until_s: float) -> str:
    if until_s < inf:
        return f"from {from_s:g} s to {until_s:g} s"
    return f"from {from_s:g} s on" if from_s else "all the time"
