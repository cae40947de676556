"""What was found as one JSON file for other programs: the same question gives the same bytes, on every machine.

So nothing in it says when it was made, how long that took or by how many processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import msgspec

from router.scheduling.policy.policy import compute_digest
from router.testbed.sweep.capacity import CapacityResult
from router.testbed.sweep.cells import CellFailure, CellResult, SweepCell
from router.testbed.sweep.option_values import OFF
from router.testbed.sweep.spec import SweepSpec


def encode_results(
    asked: SweepSpec,
    cells: Sequence[SweepCell],
    measured: Sequence[CellResult],
    found: Sequence[CapacityResult],
    failed: Sequence[CellFailure],
    *,
    complete: bool,
) -> bytes:
    """`cells`: all that were wanted. Of them the policies' digests, the profile's numbers and what the troubles are:
    names say little. None: a failure's end that never comes.
    """
    whole = {
        "warmroute": version("warmroute"),
        "complete": complete,
        "asked": asdict(asked),
        "policies": {cell.policy: compute_digest(cell.rules) for cell in cells},
        "profile": asdict(cells[0].scenario.profile),
        "troubles": {cell.fleet.trouble: asdict(cell.scenario.trouble) for cell in cells if cell.fleet.trouble != OFF},
        "cells": [_cell(one) for one in measured],
        "capacities": [_found(one) for one in found],
        "failed": [one._asdict() for one in failed],
    }
    return msgspec.json.format(msgspec.json.encode(whole, enc_hook=str), indent=1) + b"\n"


def _which(cell: SweepCell) -> dict[str, Any]:
    return {
        "policy": cell.policy,
        "workload": cell.source.name,
        **cell.fleet._asdict(),
        "load": cell.load._asdict(),
        "seed": cell.seed,
    }


def _cell(one: CellResult) -> dict[str, Any]:
    return _which(one.cell) | {
        "requests_per_s_offered": one.requests_per_s,
        **one.figures._asdict(),
        "virtual_s": one.took_s,
        "decisions": one.decisions,
        "preemptions": one.preemptions,
        "double_bookings": one.double_bookings,
    }


def _found(one: CapacityResult) -> dict[str, Any]:
    return _which(one.search.cell) | {
        "share_wanted": one.search.share,
        "best": None if one.best is None else one.best._asdict(),
        "bounded": one.bounded,
        "tried": [tried._asdict() for tried in one.tried],
    }
