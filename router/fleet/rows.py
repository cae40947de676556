"""The rows of a view: every candidate's facts, frozen, for one decision.

Read for every candidate of every request, so it is the fleet's hot spot. From one decision to the next hardly anything
changes: a booking here, a first byte there. So the board keeps each target's row until its target says that something
did, and many decisions, and the records of them, share one row; only the overlap is the request's own. `rows` below is
the same without the keeping.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter

from router.fleet.instance import Target
from router.kvcache.events import TargetId
from scorers.contract import Overlap, Row

Held = Callable[[Target], int | None]
"""How many tokens a target holds, of whatever prompts."""

ROW_MAX_AGE_S = 0.1
ID = attrgetter("id")


class RowCache(dict[Target, Row]):
    """The rows of a fleet's targets, without overlaps. Targets say when they change. Ages, and what targets hold in
    all, are good to `ROW_KEPT_S`.

    It remembers who changed for a fleet's lineups, too (`lineup.py`), which keep columns as this keeps rows.
    """

    def __init__(self) -> None:
        self.changed_targets: set[Target] = set()  # who changed since the lineups heard of it
        self.block_sizes: dict[str | None, frozenset[int]] = {}  # by model: in use there
        self._now = 0.0
        self._held: Held | None = None
        self._begun_at = 0.0
        self._lately: dict[str, tuple[Row, Overlap, Row]] = {}  # a row, an overlap, and both in one
        self._counted = False  # what targets hold in all is in the rows

    def on_change(self, target: Target) -> None:
        self.pop(target, None)
        self.changed_targets.add(target)

    def on_gauges_change(self, target: Target) -> None:
        """Only what no lineup keeps has changed."""
        self.pop(target, None)

    def on_block_size_change(self) -> None:
        """A target has another block size."""
        self.block_sizes.clear()

    def __missing__(self, target: Target) -> Row:
        row = self[target] = target.build_row(self._now, self._held)
        return row

    def rows(
        self,
        targets: Sequence[Target],
        overlaps: Mapping[TargetId, Overlap | None],
        now: float,
        held: Held | None = None,
    ) -> tuple[Row, ...]:
        """As the function `rows`."""
        if now - self._begun_at > ROW_MAX_AGE_S or (held is not None and not self._counted):
            self.clear()
            self._lately.clear()
            self._begun_at, self._counted = now, held is not None
        self._now, self._held = now, held
        kept = map(self.__getitem__, targets)
        if not overlaps:
            return tuple(kept)
        of = map(overlaps.get, map(ID, targets))
        return tuple(
            [row if overlap is None else self._merged(row, overlap) for row, overlap in zip(kept, of, strict=True)]
        )

    def _merged(self, row: Row, overlap: Overlap) -> Row:
        """Most overlaps say "nothing" and are the same object from decision to decision: so are their rows then."""
        last = self._lately.get(row.target)
        if last is not None and last[0] is row and last[1] is overlap:
            return last[2]
        merged = _with(row, overlap)
        self._lately[row.target] = row, overlap, merged
        return merged


def build_rows(
    targets: Sequence[Target], overlaps: Mapping[TargetId, Overlap | None], now: float, held: Held | None = None
) -> tuple[Row, ...]:
    """One row per target, in their order. A target that `overlaps` does not name has an unknown overlap. `held` is
    asked where a policy wants to know.
    """
    overlap_of = overlaps.get
    made = []
    for target in targets:
        row, overlap = target.build_row(now, held), overlap_of(target.id)
        made.append(row if overlap is None else _with(row, overlap))
    return tuple(made)


def _with(row: Row, overlap: Overlap) -> Row:
    target, instance, rank, block_tokens, capacity_tokens, _, load, speed, held_tokens = row
    return Row(target, instance, rank, block_tokens, capacity_tokens, overlap, load, speed, held_tokens)
