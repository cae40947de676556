"""The loads of the comparison. Lengths are a tenth or a fifth of the published ones, as are the engines' caches and
speeds, so that two cores can play eight engines; ratios stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from router.lab.emulator.options import EngineFaults
from router.lab.workloads.model import Workload
from router.lab.workloads.presets import CLAUDE, CODEX, GROUPS, TOOLS, SharedPrefixWorkload
from tests.headtohead.engines import BLOCKS, ENGINES, NO_FAULTS

LONG_S, WARM_S = 75.0, 15.0


class Load(NamedTuple):
    """`agents`: of a closed loop; None: an open one. `blocks`: of 16 tokens, of each engine. `kill_at_s`: when engine 0
    is killed; it comes back empty. The others only in virtual time. `faults`: by engine, from the start on. `routers`:
    each request comes to one of them by chance. `restart_at_s`: when a new router replaces the first one, which
    finishes what it has.
    """

    name: str
    about: str
    make: Callable[[int], Workload]
    agents: int | None = None
    blocks: int = BLOCKS
    kill_at_s: float | None = None
    faults: Mapping[int, EngineFaults] = NO_FAULTS
    routers: int = 1
    restart_at_s: float | None = None


_codex = CODEX.scale(tokens=0.1, sessions=0.5).workload
_claude = CLAUDE.scale(tokens=0.1, sessions=0.1).workload
_groups = replace(GROUPS.scale(tokens=0.2), requests=2000).workload
_tools = replace(TOOLS.scale(tokens=0.1), requests=1500, per_s=15.0).workload
_alone = replace(GROUPS.scale(tokens=0.2), requests=2000, prefixed=0.0).workload

SLOW = {0: EngineFaults(slow=2.0)}
LOSSY = {number: EngineFaults(drop_events=0.05) for number in range(ENGINES)}

LOADS: Sequence[Load] = (
    Load("agents, 32", "32 coding agents whose sessions fit the caches", _codex, agents=32),
    Load(
        "agents, 64, small caches",
        "64 coding agents, caches for half of their sessions",
        _codex,
        agents=64,
        blocks=1536,
    ),
    Load("sub-agents, 10", "10 coding agents with up to four sub-agents at once", _claude, agents=10),
    Load("groups, 20/s", "150 groups of users with a long prompt each", _groups),
    Load("tools, 15/s", "12 long tool prompts, most requests begin with one", _tools),
    Load("one-off prompts, 20/s", "prompts that share nothing", _alone),
    Load("an engine is killed", "`agents, 32`; an engine is killed after 30 s", _codex, agents=32, kill_at_s=30.0),
)
# in virtual time, where two cores play any rate: each kind below and at the knee
_many = CODEX.scale(tokens=0.1).workload
_families = CLAUDE.scale(tokens=0.1, sessions=0.5).workload


def _open(preset: SharedPrefixWorkload, per_s: float, prefixed: float | None = None) -> Callable[[int], Workload]:
    """Return an open loop of four minutes."""
    share = preset.prefixed if prefixed is None else prefixed
    return replace(preset, requests=int(240 * per_s), per_s=per_s, prefixed=share).workload


_fifth, _tenth = GROUPS.scale(tokens=0.2), TOOLS.scale(tokens=0.1)
SIMULATED: Sequence[Load] = (
    Load("agents, 96", "96 coding agents whose sessions fit the caches", _many, agents=96),
    Load("agents, 192", "192 coding agents, at the knee", _many, agents=192),
    Load("agents, small caches", "96 coding agents, caches for half of their sessions", _many, agents=96, blocks=2304),
    Load("sub-agents, 30", "30 coding agents with up to four sub-agents at once", _families, agents=30),
    Load("sub-agents, 60", "60 of them", _families, agents=60),
    Load("groups, 30/s", "150 groups of users with a long prompt each", _open(_fifth, 30.0)),
    Load("groups, 60/s", "the same, at the knee", _open(_fifth, 60.0)),
    Load("tools, 25/s", "12 long tool prompts, most requests begin with one", _open(_tenth, 25.0)),
    Load("tools, 40/s", "the same, at the knee", _open(_tenth, 40.0)),
    Load("one-off prompts, 30/s", "prompts that share nothing", _open(_fifth, 30.0, prefixed=0.0)),
    Load("an engine is slow", "`agents, 96`; an engine runs at half its speed", _many, agents=96, faults=SLOW),
    Load("events are lost", "`agents, 96`; 5 % of all KV events are lost", _many, agents=96, faults=LOSSY),
    Load("two routers", "`agents, 96`; two routers, and requests come to either", _many, agents=96, routers=2),
    Load("the router restarts", "`agents, 96`; a new router gets all after 60 s", _many, 96, restart_at_s=60),
)
# at four real engines, on CPUs: blocks have 32 tokens
_twentieth = CODEX.scale(tokens=0.05, sessions=0.5).workload
AT_REAL: Sequence[Load] = (
    Load("agents, 12", "12 coding agents whose sessions fit the caches", _twentieth, agents=12, blocks=1024),
    Load(
        "agents, 24, small caches",
        "24 coding agents, caches for half of their sessions",
        _twentieth,
        agents=24,
        blocks=320,
    ),
)
SHORT = ("agents, 32", "an engine is killed")
