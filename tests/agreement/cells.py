"""The cells in which the default policy is held against all others: workload, load, fleet, pool, rate and trouble.

A cell says what is served by what; it knows no policy, no seed and no simulator (`ground.py` builds it). Its name is
made of its parts, `codex/16/n8/p40` or `tools/0.7/n8/nopool/bursts`, so that a regular expression picks cells.

    load      rho of open workloads, sessions per instance of agents (`kinds.py`)
    fleet     speeds   every second instance is an older GPU          cold    one instance joins with an empty cache
              grows    a quarter of the instances joins meanwhile     shrinks a quarter leaves meanwhile
    rate      day      doubles and falls again every two minutes      bursts  sixfold for 4 of every 20 s
    trouble   lost     5 % of the event batches                       slow    one instance at half speed
              lag      events 0.2 s late                              stale   metrics every 0.5 s
              late     the router starts when caches are half full    all     all of these at once

How they are chosen. A product of all this would have a hundred thousand cells, so each kind of workload meets two or
three sizes of fleet, and each time another load and pool: 3 to 64 instances, odd numbers too; rho 0.5 to 1.3; no pool,
a fast one and a slow one. Each kind of fleet, rate and trouble meets a few workloads unlike each other: shared
prompts, conversations, agents. `REDUCED` has all kinds; `MORE` has further sizes, loads and troubles of the same kinds.

"Thrash" is where a fleet's sessions outgrow its caches and no pool keeps what is evicted: routing cannot help there, so
those cells are shown and left out of the bar.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from tests.agreement.kinds import AGENTS

FAST, SLOW = 150_000, 40_000
"""Tokens per second of each instance's link to the pool."""

FleetKind = Literal["", "speeds", "cold", "grows", "shrinks"]
RateKind = Literal["", "day", "bursts"]
TROUBLES = ("lost", "slow", "lag", "stale", "late", "all")


class Cell(NamedTuple):
    """`load`: rho where open, sessions per instance of agents. `pool`: tokens/s of each instance's link; 0: none."""

    workload: str
    load: float
    instances: int
    pool: int
    trouble: str = ""
    fleet: FleetKind = ""
    rate: RateKind = ""

    @property
    def of_agents(self) -> bool:
        return self.workload in AGENTS

    @property
    def name(self) -> str:
        pool = f"p{self.pool // 1000}" if self.pool else "nopool"
        parts = [self.workload, f"{self.load:g}", f"n{self.instances}", pool, self.rate, self.fleet, self.trouble]
        return "/".join(part for part in parts if part)

    @property
    def thrash(self) -> bool:
        return self.of_agents and self.load >= AGENTS[self.workload].edge and not self.pool

    @property
    def clean(self) -> Cell:
        return self._replace(trouble="")


def _cells(workload: str, *chosen: tuple[float, int, int]) -> Iterator[Cell]:
    """`chosen`: load, instances, pool."""
    return (Cell(workload, *one) for one in chosen)


REDUCED = (
    *_cells("conversation", (0.6, 8, 0), (0.9, 5, 0), (1.2, 4, 0), (0.9, 8, FAST), (1.2, 16, SLOW), (0.9, 33, 0)),
    *_cells("tools", (0.6, 4, 0), (0.9, 7, 0), (0.9, 8, 0), (1.2, 16, 0), (0.9, 8, FAST), (1.2, 5, SLOW)),
    *_cells("groups", (1.1, 5, 0), (1.1, 8, 0), (1.1, 16, 0), (0.7, 8, 0), (1.3, 7, SLOW), (0.9, 33, FAST)),
    *_cells("few", (0.5, 3, 0), (1.3, 16, 0), (1.1, 64, 0)),
    *_cells("few-zipf1.4", (0.9, 7, 0), (1.3, 16, 0)),
    *_cells("many", (0.9, 8, 0), (1.2, 16, 0), (1.2, 7, FAST)),
    *_cells("zipf1", (0.9, 8, 0), (1.2, 33, 0)),
    *_cells("zipf1.4", (0.7, 5, 0), (1.2, 16, 0)),
    *_cells("answers-1k", (0.6, 8, 0), (0.9, 5, 0), (1.1, 16, 0)),
    *_cells("answers-4k", (0.6, 7, 0), (0.9, 3, 0), (0.9, 16, 0)),
    *_cells("short", (0.6, 3, 0), (0.9, 7, 0), (1.1, 5, 0)),
    *_cells("codex", (8, 8, 0), (12, 7, 0), (16, 4, 0), (16, 8, 0), (16, 33, 0), (24, 8, FAST), (48, 4, FAST)),
    *_cells("codex", (24, 4, SLOW), (48, 8, SLOW), (24, 8, 0), (48, 5, 0)),
    *_cells("claude", (3, 8, 0), (5, 5, 0), (8, 16, FAST), (12, 7, SLOW), (12, 8, 0)),
    *_cells("scaling", (4, 7, 0), (8, 5, 0), (14, 8, FAST)),
    *_cells("mixed", (6, 8, 0), (12, 5, 0), (8, 16, 0), (20, 7, FAST)),
    Cell("conversation", 0.9, 8, 0, rate="day"),
    Cell("tools", 0.9, 7, 0, rate="day"),
    Cell("groups", 0.9, 8, 0, rate="day"),
    Cell("conversation", 0.6, 16, 0, rate="bursts"),
    Cell("tools", 0.7, 8, 0, rate="bursts"),
    Cell("few", 0.9, 5, 0, rate="bursts"),
    Cell("conversation", 0.8, 8, 0, fleet="speeds"),
    Cell("tools", 0.9, 7, 0, fleet="speeds"),
    Cell("groups", 0.9, 16, 0, fleet="speeds"),
    Cell("codex", 8, 8, 0, fleet="speeds"),
    Cell("tools", 0.9, 8, 0, fleet="cold"),
    Cell("groups", 1.0, 5, 0, fleet="cold"),
    Cell("codex", 12, 7, 0, fleet="cold"),
    Cell("conversation", 0.9, 16, 0, fleet="grows"),
    Cell("groups", 0.9, 8, 0, fleet="grows"),
    Cell("codex", 12, 8, FAST, fleet="grows"),
    Cell("tools", 0.7, 16, 0, fleet="shrinks"),
    Cell("groups", 0.7, 8, 0, fleet="shrinks"),
    Cell("codex", 8, 7, 0, fleet="shrinks"),
    Cell("tools", 0.9, 7, 0, "lost"),
    Cell("groups", 1.1, 8, 0, "lost"),
    Cell("groups", 0.7, 8, 0, "slow"),
    Cell("codex", 16, 8, 0, "slow"),
    Cell("tools", 0.9, 8, 0, "all"),
    Cell("conversation", 0.9, 8, FAST, "all"),
    Cell("codex", 16, 8, 0, "all"),
    Cell("codex", 24, 8, FAST, "all"),
)

BUSY = (
    Cell("conversation", 0.9, 8, FAST),
    Cell("tools", 0.9, 8, 0),
    Cell("groups", 1.1, 8, 0),
    Cell("codex", 16, 8, 0),
    Cell("codex", 24, 8, FAST),
)
"""Busy, but not past what routing can do: there, not knowing costs most. They meet every kind of trouble."""

MORE = (
    *_cells("conversation", (0.5, 3, 0), (1.3, 7, 0), (0.6, 5, SLOW), (1.2, 8, FAST), (0.9, 64, 0)),
    *_cells("tools", (1.3, 3, 0), (0.6, 16, 0), (1.2, 33, FAST), (0.9, 5, SLOW), (0.9, 64, 0)),
    *_cells("groups", (0.5, 3, 0), (1.1, 5, FAST), (1.1, 16, FAST), (0.9, 64, 0)),
    *_cells("few", (0.9, 7, FAST)),
    *_cells("few-zipf1.4", (0.6, 33, 0), (1.1, 5, SLOW)),
    *_cells("many", (0.7, 3, 0), (0.9, 33, FAST)),
    *_cells("zipf1", (0.6, 5, 0), (1.2, 16, SLOW)),
    *_cells("zipf1.4", (0.9, 8, FAST), (1.0, 33, 0)),
    *_cells("answers-1k", (0.9, 33, 0), (0.7, 3, FAST)),
    *_cells("answers-4k", (1.1, 8, 0), (0.7, 33, 0)),
    *_cells("short", (0.9, 16, 0), (0.5, 8, 0)),
    *_cells("codex", (8, 3, 0), (16, 64, 0), (16, 16, SLOW), (8, 33, FAST), (24, 3, 0)),
    *_cells("claude", (4, 33, 0), (6, 3, SLOW), (10, 16, 0)),
    *_cells("scaling", (8, 33, FAST), (6, 16, 0), (14, 3, 0)),
    *_cells("mixed", (8, 33, 0), (10, 3, SLOW)),
    Cell("groups", 0.9, 16, FAST, rate="day"),
    Cell("zipf1.4", 0.9, 16, 0, rate="bursts"),
    Cell("short", 0.7, 8, 0, rate="bursts"),
    Cell("many", 0.9, 33, 0, fleet="speeds"),
    Cell("mixed", 6, 7, 0, fleet="speeds"),
    Cell("conversation", 0.9, 33, 0, fleet="cold"),
    Cell("claude", 5, 8, 0, fleet="grows"),
    Cell("tools", 0.9, 64, 0, fleet="grows"),
    Cell("mixed", 6, 8, 0, fleet="shrinks"),
    Cell("conversation", 0.7, 33, FAST, fleet="shrinks"),
)


def reduced_cells() -> tuple[Cell, ...]:
    return REDUCED


def all_cells() -> tuple[Cell, ...]:
    """Those of the reduced grid, `MORE`, and `BUSY` in every kind of trouble."""
    troubled = (cell._replace(trouble=trouble) for cell in BUSY for trouble in TROUBLES)
    return tuple(dict.fromkeys((*REDUCED, *MORE, *troubled)))


FIRST_PASS = (
    Cell("conversation", 0.9, 5, 0),
    Cell("tools", 0.9, 8, FAST),
    Cell("groups", 1.1, 5, 0),
    Cell("groups", 1.1, 16, 0),
    Cell("zipf1.4", 1.2, 16, 0),
    Cell("many", 0.9, 8, 0),
    Cell("answers-1k", 0.9, 5, 0),
    Cell("short", 0.6, 3, 0),
    Cell("codex", 16, 8, 0),
    Cell("codex", 24, 4, SLOW),
    Cell("claude", 5, 5, 0),
    Cell("mixed", 6, 8, 0),
    Cell("tools", 0.9, 7, 0, fleet="speeds"),
    Cell("groups", 0.9, 8, 0, fleet="grows"),
    Cell("few", 0.9, 5, 0, rate="bursts"),
)
"""Cells of the reduced grid unlike each other: what is good in none of them is good nowhere (`regret.promising`)."""
