"""Presets by name, each with the published statistics of the workload that it imitates.

`agents.py` and `shared_prefixes.py` give the source of each number beside its preset. `warmroute workload stats` prints
the published values beside those of a seed, and a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from router.testbed.workloads.agents import CODEX, SCALING, AgentsWorkload
from router.testbed.workloads.shared_prefixes import GROUPS, TOOLS, SharedPrefixWorkload

Preset = AgentsWorkload | SharedPrefixWorkload
"""A family of workloads: the same preset and seed always give the same `workload(seed)`."""

PRESETS: Mapping[str, Preset] = MappingProxyType({preset.name: preset for preset in (CODEX, SCALING, GROUPS, TOOLS)})

PUBLISHED: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "codex": {
            "sessions": "610",
            "turns, median": "33",
            "first prompt, mean": "12,000",
            "growth per turn, mean": "about 2,270",
            "last prompt, median": "about 80,000",
            "longest prompt": "cap 200,000",
            "input per output": "131",
            "ideal hits": "94.2 %",
            "shared by sessions": "1.7 %",
            "think time, median": "5.2 s",
        },
        "scaling": {
            "sessions": "75 per 12 GPUs",
            "turns, median": "30",
            "first prompt, mean": "30,000",
            "growth per turn, mean": "2,948",
            "output, mean": "900",
            "ideal hits": "> 95 %",
        },
        "groups": {"rate": "3 to 60 /s", "input, mean": "7,200", "output, mean": "1,000"},
        "tools": {
            "requests": "23,608",
            "rate": "6.56 /s",
            "input, mean": "8,596",
            "output, mean": "182",
            "ideal hits": "59 %",
        },
    }
)
"""By preset and by the row of the table that `warmroute workload stats` prints."""
