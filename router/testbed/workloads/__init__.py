"""Workloads as values: sessions of turns with their sizes, pauses and shared prefixes, all from one seed.

`model.py` defines a workload, `arrivals.py` keeps a million requests small, `distributions.py` draws sizes; `agents.py`
generates closed loops, `shared_prefixes.py` open ones, each with presets of published statistics. `traces.py` reads
traces. Nothing here knows an engine or a clock.
"""

from router.testbed.workloads.agents import CODEX, SCALING, AgentsWorkload
from router.testbed.workloads.arrivals import OpenArrivals, speed_up, take_first, take_window
from router.testbed.workloads.distributions import LogNormal
from router.testbed.workloads.model import Session, Span, Turn, Workload, make_token_ids
from router.testbed.workloads.presets import PRESETS, PUBLISHED, Preset
from router.testbed.workloads.shared_prefixes import GROUPS, TOOLS, SharedPrefixWorkload

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
