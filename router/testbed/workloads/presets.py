"""The presets by name, each with the statistics that were published of what it imitates.

Where a number comes from stands beside its preset, in `agents.py` and `templates.py`. `warmroute workload stats` prints
the published beside what a seed really has, and a test holds them together.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from router.testbed.workloads.agents import CODEX, SCALING, AgentsWorkload
from router.testbed.workloads.shared_prefixes import GROUPS, TOOLS, SharedPrefixWorkload

Preset = AgentsWorkload | SharedPrefixWorkload
"""A family of workloads: `workload(seed)` is always the same for the same preset and seed."""

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
        "groups": {
            "rate": "3 to 60 /s",
            "input, mean": "7,200",
            "output, mean": "1,000",
        },
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
