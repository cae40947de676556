"""Workloads as values: sessions of turns with their sizes, pauses and shared prefixes, all from one seed.

`model.py` defines a workload, `arrivals.py` keeps a million requests small, `distributions.py` draws sizes,
`presets.py` generates closed and open loops with published statistics, `traces.py` reads traces. Nothing here knows an
engine or a clock.
"""

from router.testbed.workloads.arrivals import OpenArrivals, speed_up, take_first, take_window
from router.testbed.workloads.distributions import LogNormal
from router.testbed.workloads.model import Session, Span, Turn, Workload, make_token_ids
from router.testbed.workloads.presets import (
    CODEX,
    GROUPS,
    PRESETS,
    PUBLISHED,
    SCALING,
    TOOLS,
    AgentsWorkload,
    Preset,
    SharedPrefixWorkload,
)

__all__ = [
    "CODEX",
    "GROUPS",
    "PRESETS",
    "PUBLISHED",
    "SCALING",
    "TOOLS",
    "AgentsWorkload",
    "LogNormal",
    "OpenArrivals",
    "Preset",
    "Session",
    "SharedPrefixWorkload",
    "Span",
    "Turn",
    "Workload",
    "make_token_ids",
    "speed_up",
    "take_first",
    "take_window",
]
