"""The rows of a view: every candidate's facts, frozen, for one decision.

Built per request for every candidate, so it is the fleet's hot spot. A target keeps its row until something about it
changes (`Target.row`); only the overlap is the request's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from router.blocks.events import TargetId
from router.fleet.target import Target
from scorers.contract import Overlap, Row


def rows(
    targets: Sequence[Target],
    overlaps: Mapping[TargetId, Overlap | None],
    now: float,
    held: Callable[[Target], int | None] | None = None,
) -> tuple[Row, ...]:
    """One row per target, in their order. A target that `overlaps` does not name has an unknown overlap. `held`: how
    many tokens a target holds of whatever prompts, where a policy wants to know.
    """
    overlap_of = overlaps.get
    made = []
    for target in targets:
        row = target.row(now, held)
        overlap = overlap_of(target.id)
        made.append(row if overlap is None else Row(*row[:5], overlap, *row[6:]))
    return tuple(made)
