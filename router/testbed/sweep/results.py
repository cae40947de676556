"""Results of a run as one JSON document for other programs: the same options give the same bytes, on every machine.

So nothing in it depends on when it was made, how long that took or how many processes did it.
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
    spec: SweepSpec,
    cells: Sequence[SweepCell],
    measured: Sequence[CellResult],
    capacities: Sequence[CapacityResult],
    failed: Sequence[CellFailure],
    *,
    complete: bool,
) -> bytes:
    """Return the JSON; `cells` are all that were requested.

    It has the policies' digests, the profile's numbers and the troubles' contents, since names alone say little. A
    failure that never ends has the end null.
    """
    document = {
        "warmroute": version("warmroute"),
        "complete": complete,
        "asked": asdict(spec),
        "policies": {cell.policy: compute_digest(cell.rules) for cell in cells},
        "profile": asdict(cells[0].scenario.profile),
        "troubles": {cell.fleet.trouble: asdict(cell.scenario.trouble) for cell in cells if cell.fleet.trouble != OFF},
        "cells": [_cell(one) for one in measured],
        "capacities": [_capacity(one) for one in capacities],
        "failed": [one._asdict() for one in failed],
    }
    return msgspec.json.format(msgspec.json.encode(document, enc_hook=str), indent=1) + b"\n"


def _identify(cell: SweepCell) -> dict[str, Any]:
    return {
        "policy": cell.policy,
        "workload": cell.source.name,
        **cell.fleet._asdict(),
        "load": cell.load._asdict(),
        "seed": cell.seed,
    }


def _cell(one: CellResult) -> dict[str, Any]:
    return _identify(one.cell) | {
        "requests_per_s_offered": one.requests_per_s,
        **one.figures._asdict(),
        "virtual_s": one.took_s,
        "decisions": one.decisions,
        "preemptions": one.preemptions,
        "double_bookings": one.double_bookings,
    }


def _capacity(one: CapacityResult) -> dict[str, Any]:
    return _identify(one.search.cell) | {
        "share_wanted": one.search.share,
        "best": None if one.best is None else one.best._asdict(),
        "bounded": one.bounded,
        "tried": [tried._asdict() for tried in one.tried],
    }
