"""What a comparison shows of each policy: figures as columns, with their units, and which end of each is the better.

The terminal, the HTML page and the charts say the same because they ask here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from router.testbed.simulator.outcome import SimulationFigures

MISSING = "-"


class FigureColumn(NamedTuple):
    key: str
    head: str  # with the unit
    of: Callable[[SimulationFigures], float | None]
    digits: int
    better: Literal["less", "more"] | None = None
    always: bool = True  # False: only where it is not 0 or missing for everybody
    spread: bool = False  # over seeds: shown beside the mean


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def percent(share: float | None) -> float | None:
    return None if share is None else share * 100


COLUMNS: tuple[FigureColumn, ...] = (
    FigureColumn("ttft_mean", "TTFT s mean", lambda own: own.ttft_mean_s, 2, "less", spread=True),
    FigureColumn("ttft_p50", "p50", lambda own: own.ttft_p50_s, 2, "less"),
    FigureColumn("ttft_p90", "p90", lambda own: own.ttft_p90_s, 2, "less", spread=True),
    FigureColumn("ttft_p99", "p99", lambda own: own.ttft_p99_s, 2, "less"),
    FigureColumn("tpot", "TPOT ms", lambda own: _ms(own.tpot_mean_s), 1, "less"),
    FigureColumn("requests_per_s", "req/s", lambda own: own.requests_per_s, 2, "more", spread=True),
    FigureColumn("good_per_s", "good/s", lambda own: own.good_per_s, 2, "more", spread=True),
    FigureColumn("output", "out tok/s", lambda own: own.output_tokens_per_s, 0, "more"),
    FigureColumn("hit", "hit %", lambda own: percent(own.hit_share), 1, "more", spread=True),
    FigureColumn("local", "local", lambda own: percent(own.local_share), 1),
    FigureColumn("host", "host", lambda own: percent(own.host_share), 1, always=False),
    FigureColumn("pool", "pool", lambda own: percent(own.pool_share), 1, always=False),
    FigureColumn("imbalance", "imbal.", lambda own: own.imbalance, 2, "less"),
    FigureColumn("shed", "shed", lambda own: own.shed, 0, "less", always=False),
    FigureColumn("failed", "failed", lambda own: own.failed, 0, "less", always=False),
    FigureColumn("waited_p50", "wait s p50", lambda own: own.waited_p50_s, 1, always=False),
    FigureColumn("waited_p90", "wait s p90", lambda own: own.waited_p90_s, 1, always=False),
)


class FigureValue(NamedTuple):
    """Over seeds. `spread`: half of what lies between the lowest and the highest; None of one seed."""

    mean: float
    spread: float | None

    def shown(self, digits: int, spread: bool = True) -> str:
        middle = f"{self.mean:,.{digits}f}"
        return middle if self.spread is None or not spread else f"{middle} ±{self.spread:,.{digits}f}"


def average_over_seeds(values: Sequence[float | None]) -> FigureValue | None:
    """None where a seed has none: a mean of the others would be of another thing."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    return FigureValue(sum(known) / len(known), (max(known) - min(known)) / 2 if len(known) > 1 else None)


def select_columns(figures: Sequence[SimulationFigures]) -> list[FigureColumn]:
    return [column for column in COLUMNS if column.always or any(column.of(own) for own in figures)]


def find_best(column: FigureColumn, values: Sequence[FigureValue | None]) -> set[int]:
    """Rows that are the best as shown. Empty where nothing is better, or all are alike."""
    known = {row: round(value.mean, column.digits) for row, value in enumerate(values) if value is not None}
    if column.better is None or len(set(known.values())) < 2:
        return set()
    wanted = min(known.values()) if column.better == "less" else max(known.values())
    return {row for row, value in known.items() if value == wanted}
