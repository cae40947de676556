"""What clients ask, as values: sessions of turns with their sizes, pauses and shared beginnings, all from one seed.

`shapes.py` says what a workload is, `arrivals.py` keeps a million requests small, `lengths.py` draws sizes; `agents.py`
generates closed loops, `templates.py` open ones, each with presets of published statistics. Traces are read in
`router/testbed/workloads/traces.py`. Nothing here knows an engine or a clock.
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
