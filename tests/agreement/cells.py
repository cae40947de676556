"""The cells in which the default policy is held against all others: workload x pool x fleet x load, and with trouble.

A cell says what is served by what; it knows no policy, no seed and no simulator (`ground.py` builds it). Its name is
made of its parts, `codex/16/n8/p40`, so that a regular expression picks cells: open workloads name their load by rho,
closed ones by sessions per instance. "Thrash" is where a fleet's sessions outgrow its caches and no pool keeps what is
evicted: routing cannot help there, so those cells are shown and left out of the bar.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

KV_TOKENS = 1_000_000
"""Per instance: 24 coding agents at once are then about as much as its cache holds."""

OPEN, CLOSED = ("conversation", "tools"), ("codex",)
RHOS, SESSIONS = (0.6, 0.9, 1.2), (8, 16, 24, 48)
POOLS, SIZES = (0, 150_000, 40_000), (4, 8, 32)
TROUBLES = ("lost", "slow", "lag", "stale", "late", "all")
EDGE_SESSIONS = 24


class Cell(NamedTuple):
    """`load`: rho where open, sessions per instance where closed. `pool`: tokens/s of each instance's link; 0: none."""

    workload: str
    load: float
    instances: int
    pool: int
    trouble: str = ""

    @property
    def closed(self) -> bool:
        return self.workload in CLOSED

    @property
    def name(self) -> str:
        pool = f"p{self.pool // 1000}" if self.pool else "nopool"
        parts = [self.workload, f"{self.load:g}", f"n{self.instances}", pool, self.trouble]
        return "/".join(part for part in parts if part)

    @property
    def thrash(self) -> bool:
        return self.closed and self.load >= EDGE_SESSIONS and not self.pool

    @property
    def clean(self) -> Cell:
        return self._replace(trouble="")


def clean_cells() -> Iterator[Cell]:
    for instances in SIZES:
        for pool in POOLS:
            for workload in OPEN:
                for rho in RHOS:
                    yield Cell(workload, rho, instances, pool)
            for workload in CLOSED:
                for sessions in SESSIONS:
                    yield Cell(workload, sessions, instances, pool)


TROUBLED = (
    Cell("conversation", 0.9, 8, 0),
    Cell("tools", 0.9, 8, 0),
    Cell("codex", 16, 8, 0),
    Cell("codex", 24, 8, 150_000),
)
"""Busy, but not past what routing can do: there, not knowing costs most."""


def all_cells() -> tuple[Cell, ...]:
    troubled = (cell._replace(trouble=trouble) for cell in TROUBLED for trouble in TROUBLES)
    return (*clean_cells(), *troubled)


def reduced_cells() -> tuple[Cell, ...]:
    """Without what repeats or lasts: 32 instances only at the middle loads, and of the troubles all at once."""

    def stays(cell: Cell) -> bool:
        if cell.trouble:
            return cell.trouble == "all"
        return cell.instances < 32 or cell.load in (0.9, 16)

    return tuple(cell for cell in all_cells() if stays(cell))


FIRST_PASS = (
    Cell("conversation", 0.6, 8, 0),
    Cell("conversation", 1.2, 4, 0),
    Cell("tools", 0.9, 8, 150_000),
    Cell("codex", 8, 8, 0),
    Cell("codex", 16, 8, 0),
    Cell("codex", 24, 4, 40_000),
)
"""A few unlike each other: what is good in none of them is good nowhere (`regret.promising`)."""
