"""Sentences about the troubles of a run: what failed when, and which cells ended before they met it."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from router.testbed.simulator.scenario import InstanceFailure, Trouble
from router.testbed.sweep.cells import CellResult, SweepCell
from router.testbed.sweep.option_values import OFF


class FaultRemark(NamedTuple):
    """One fault, and when it begins in virtual time."""

    from_s: float
    text: str


def remarks(cells: Sequence[SweepCell], measured: Sequence[CellResult]) -> list[str]:
    """Return a line per trouble, and one per fault that some of its cells ended too early to meet."""
    lines = []
    troubles = {cell.fleet.trouble: cell.scenario.trouble for cell in cells}
    for name, trouble in troubles.items():
        if name == OFF:
            continue
        faults = describe(trouble)
        lines.append(f"Trouble {name}: {'; '.join(fault.text for fault in faults)}.")
        ends_s = [one.took_s for one in measured if one.cell.fleet.trouble == name]
        for fault in faults:
            if missed := sum(end_s <= fault.from_s for end_s in ends_s):
                lines.append(f"Too late for {missed} of its {len(ends_s)} cells: {fault.text}.")
    return lines


def describe(trouble: Trouble) -> list[FaultRemark]:
    """Return a remark per fault of `trouble`."""
    found = [_failure(failure) for failure in trouble.failures]
    if trouble.events_lost:
        found.append(FaultRemark(0.0, f"{trouble.events_lost * 100:.3g} % of all event batches are lost"))
    found += [
        FaultRemark(from_s, f"the pool is away {_when(from_s, until_s)}") for from_s, until_s in trouble.pool_away
    ]
    if trouble.router_starts_s:
        text = f"the router starts at {trouble.router_starts_s:g} s, before that requests go round robin"
        found.append(FaultRemark(0.0, text))
    return found


def _failure(failure: InstanceFailure) -> FaultRemark:
    what = "is down" if failure.kind == "down" else f"takes {failure.factor:g} times as long per step"
    return FaultRemark(failure.at_s, f"instance {failure.instance} {what} {_when(failure.at_s, failure.until_s)}")


def _when(from_s: float, until_s: float) -> str:
    if until_s < inf:
        return f"from {from_s:g} s to {until_s:g} s"
    return f"from {from_s:g} s on" if from_s else "all the time"
