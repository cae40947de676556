"""The rows of a view: every candidate's facts, frozen, for one decision.

Rows are read for every candidate of every request, so this is the fleet's hot spot. From one decision to the next
hardly anything changes: a booking, a first byte. So the cache keeps each target's row until the target reports a
change, and many decisions and their records share one row; only the overlap is specific to the request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from router.fleet.instance import Target
from router.kvcache.events import TargetId
from scorers.contract import Overlap, Row

CountHeld = Callable[[Target], int | None]
"""Returns how many tokens of all prompts a target holds; None if unknown."""

ROW_MAX_AGE_S = 0.1


class RowCache:
    """The rows of a fleet's targets, without overlaps; a row is dropped when its target changes. Ages and the total
    tokens that targets hold are up to `ROW_MAX_AGE_S` old. The cache also collects the changed targets for the
    fleet's `CandidateColumns`, which cache columns.
    """

    def __init__(self, on_first_sample: Callable[[], None] = lambda: None) -> None:
        self._report_first_sample = on_first_sample
        self._rows: dict[Target, Row] = {}
        self.changed_targets: set[Target] = set()  # since the columns were last updated
        self.block_sizes: dict[str | None, frozenset[int]] = {}  # in use, by model
        self._filled_at = 0.0
        self._merged: dict[str, tuple[Row, Overlap, Row]] = {}  # by target: a row, an overlap, and both merged
        self._has_held = False  # whether the rows have `held_tokens`

    def on_change(self, target: Target) -> None:
        """Drop the row of `target` and record the change for the columns."""
        self._rows.pop(target, None)
        self.changed_targets.add(target)

    def on_gauges_change(self, target: Target) -> None:
        """Drop the row of `target`; no column is affected."""
        self._rows.pop(target, None)

    def on_block_size_change(self) -> None:
        """Drop the block sizes, because a target has a new one."""
        self.block_sizes.clear()

    def on_first_sample(self) -> None:
        """Pass on that a part of an instance's speed has its first sample."""
        self._report_first_sample()

    def rows(
        self,
        targets: Sequence[Target],
        overlaps: Mapping[TargetId, Overlap | None],
        now: float,
        count_held: CountHeld | None = None,
    ) -> tuple[Row, ...]:
        """Return one row per target, in the order of `targets`; the overlap of a target without an entry in
        `overlaps` is unknown. `count_held` is given if a policy reads `held_tokens`.
        """
        if now - self._filled_at > ROW_MAX_AGE_S or (count_held is not None and not self._has_held):
            self._rows.clear()
            self._merged.clear()
            self._filled_at, self._has_held = now, count_held is not None
        rows: list[Row] = []
        cached = self._rows
        for target in targets:
            row = cached.get(target)
            if row is None:
                row = cached[target] = target.build_row(now, count_held)
            if overlaps and (overlap := overlaps.get(target.id)) is not None:
                row = self._merge(row, overlap)
            rows.append(row)
        return tuple(rows)

    def _merge(self, row: Row, overlap: Overlap) -> Row:
        """Return `row` with `overlap`; reuse the last result if both are the same objects, like empty ones."""
        last = self._merged.get(row.target)
        if last is not None and last[0] is row and last[1] is overlap:
            return last[2]
        target, instance, rank, block_tokens, capacity_tokens, _, load, speed, held_tokens = row
        merged = Row(target, instance, rank, block_tokens, capacity_tokens, overlap, load, speed, held_tokens)
        self._merged[row.target] = row, overlap, merged
        return merged
