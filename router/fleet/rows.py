"""The rows of a view: every candidate's facts, frozen, for one decision.

Read for every candidate of every request, so this is the fleet's hot spot. From one decision to the next hardly
anything changes: a booking, a first byte. So the cache keeps each target's row until the target reports a change,
and many decisions, and the records of them, share one row; only the overlap is the request's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from router.fleet.instance import Target
from router.kvcache.events import TargetId
from scorers.contract import Overlap, Row

CountHeld = Callable[[Target], int | None]
"""Returns how many tokens a target holds, of any prompts; None if unknown."""

ROW_MAX_AGE_S = 0.1


class RowCache:
    """The rows of a fleet's targets, without overlaps, dropped when their target changes. Ages, and what targets
    hold in all, are up to `ROW_MAX_AGE_S` old. Also collects which targets changed for a fleet's
    `CandidateColumns`, which cache columns as this caches rows.
    """

    def __init__(self, on_first_sample: Callable[[], None] = lambda: None) -> None:
        self._report_first_sample = on_first_sample
        self._rows: dict[Target, Row] = {}
        self.changed_targets: set[Target] = set()  # since the columns were last updated
        self.block_sizes: dict[str | None, frozenset[int]] = {}  # in use, by model
        self._filled_at = 0.0
        self._merged: dict[str, tuple[Row, Overlap, Row]] = {}  # by target: a row, an overlap, and the row with it
        self._has_held = False  # `held_tokens` is in the rows

    def on_change(self, target: Target) -> None:
        """Drop the row of `target` and note the change for the columns."""
        self._rows.pop(target, None)
        self.changed_targets.add(target)

    def on_gauges_change(self, target: Target) -> None:
        """Drop the row of `target`: only facts that no column has changed."""
        self._rows.pop(target, None)

    def on_block_size_change(self) -> None:
        """Drop the block sizes: a target has another one."""
        self.block_sizes.clear()

    def on_first_sample(self) -> None:
        """Report that something of an instance's speed was measured for the first time."""
        self._report_first_sample()

    def rows(
        self,
        targets: Sequence[Target],
        overlaps: Mapping[TargetId, Overlap | None],
        now: float,
        count_held: CountHeld | None = None,
    ) -> tuple[Row, ...]:
        """Return one row per target, in their order; a target without an entry in `overlaps` has an unknown
        overlap. `count_held` is called where a policy reads `held_tokens`.
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
        """Return `row` with `overlap`, from the last time if both are the same objects, as empty overlaps are."""
        last = self._merged.get(row.target)
        if last is not None and last[0] is row and last[1] is overlap:
            return last[2]
        target, instance, rank, block_tokens, capacity_tokens, _, load, speed, held_tokens = row
        merged = Row(target, instance, rank, block_tokens, capacity_tokens, overlap, load, speed, held_tokens)
        self._merged[row.target] = row, overlap, merged
        return merged
