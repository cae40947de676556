"""Advice for people: pools in GB, two tables, the sentences that matter, and all of it as JSON.

Sizes of pools are thought of in GB and counted in tokens; the profile's KV bytes per token turn one into the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from router.testbed.engine_profile import EngineProfile
from router.testbed.simulator.scenario import LinkSpeed
from router.testbed.simulator.sizing import Placement, SizingAdvice, SizingCell
from router.testbed.sweep import option_values
from router.testbed.workloads.timeline import TimedRequest

LADDER_GB = [digit * 10.0**power for power in range(-3, 6) for digit in (1, 2, 5)]
LEAST_SHARE = 0.01  # of all that was asked: smaller pools of the ladder are not worth a column
LEAST_POINTS = 0.05
TELL_EVERY = 64  # requests

Fleet = tuple[int, Placement]


def sizes_gb(given: str | None) -> list[float]:
    """In order, none at all first. None: a ladder of which `AdviceReport` shows what is of interest."""
    if given is None:
        return [0.0, *LADDER_GB]
    sizes = {0.0}
    for part in option_values.parse_list("--pool-gb", given):
        sizes.add(0.0 if part == "0" else option_values.parse_number("--pool-gb", part))
    return sorted(sizes)


class AdviceStep(NamedTuple):
    """From one pool to the next bigger one, or from one placement to the other."""

    before: SizingCell
    after: SizingCell

    @property
    def points(self) -> float:
        return 100 * (self.after.hit_share - self.before.hit_share)


class AdviceReport:
    def __init__(
        self, given: str, profile: EngineProfile, link: LinkSpeed, advice: SizingAdvice, *, whole_ladder: bool
    ) -> None:
        """`whole_ladder`: every size was asked for, and is shown."""
        self.given = given
        self.profile = profile
        self.link = link
        self.working_set_tokens = advice.working_set_tokens
        cells = advice.cells if whole_ladder else self._of_interest(advice.cells)
        self.fleets: dict[Fleet, list[SizingCell]] = {}
        for cell in cells:
            self.fleets.setdefault((cell.instances, cell.placement), []).append(cell)

    def _of_interest(self, cells: Iterable[SizingCell]) -> list[SizingCell]:
        """No pool, and from a small share of all that was asked to the first size that holds it all."""
        least = LEAST_SHARE * self.working_set_tokens
        enough = min((cell.pool_tokens for cell in cells if cell.pool_tokens >= self.working_set_tokens), default=None)
        return [
            cell
            for cell in cells
            if not cell.pool_tokens or (cell.pool_tokens >= least and (enough is None or cell.pool_tokens <= enough))
        ]

    def gb(self, tokens: int) -> float:
        return tokens * self.profile.kv_bytes_per_token / 1e9

    def title(self) -> str:
        requests = next(iter(self.fleets.values()))[0].requests
        size = f"all different blocks are {in_gb(self.gb(self.working_set_tokens))} GB"
        return f"{self.given}: {requests:,} requests on {self.profile.name}; {size}"

    def tables(self) -> list[Table]:
        hits = self._table("hits, % of the prompts' tokens", lambda cell: f"{100 * cell.hit_share:.1f}")
        return [hits, self._table("mean prefill, ms, loading included", lambda cell: f"{1e3 * cell.prefill_s:,.0f}")]

    def _table(self, title: str, entry: Callable[[SizingCell], str]) -> Table:
        table = Table(title=title, box=box.SIMPLE, title_justify="left", padding=(0, 1, 0, 0))
        table.add_column("instances", justify="right", no_wrap=True)
        table.add_column("placed", no_wrap=True)
        for cell in next(iter(self.fleets.values())):
            name = f"{in_gb(self.gb(cell.pool_tokens))} GB" if cell.pool_tokens else "no pool"
            table.add_column(name, justify="right", no_wrap=True)
        for (instances, placement), cells in self.fleets.items():
            table.add_row(str(instances), placement if instances > 1 else "", *map(entry, cells))
        return table

    def sentences(self) -> list[str]:
        """Per fleet size the step of the pool that brings most per GB, and what placement alone brings."""
        lines = []
        for (instances, placement), cells in self.fleets.items():
            if placement != "by prefix":
                continue
            name = f"{instances} instance{'s' if instances > 1 else ''}"
            lines.append(f"{name}: {self._pool_sentence(cells)}")
            if at_random := self.fleets.get((instances, "at random")):
                lines.append(
                    f"{name}, no pool: placed by prefix, not at random: {_gain(AdviceStep(at_random[0], cells[0]))}"
                )
        return lines

    def _pool_sentence(self, cells: list[SizingCell]) -> str:
        steps = [AdviceStep(*pair) for pair in pairwise(cells)]
        if not any(step.points >= LEAST_POINTS for step in steps):
            return "none of these pools brings a hit that its own caches have not"
        best = max(steps, key=lambda step: step.points / (step.after.pool_tokens - step.before.pool_tokens))
        before, after = self.gb(best.before.pool_tokens), self.gb(best.after.pool_tokens)
        return f"{in_gb(after - before)} GB more pool ({in_gb(before)} -> {in_gb(after)} GB): {_gain(best)}"

    def as_json(self) -> dict[str, Any]:
        return {
            "workload": self.given,
            "profile": self.profile.name,
            "pool_tokens_per_s": self.link.tokens_per_s,
            "working_set_tokens": self.working_set_tokens,
            "working_set_gb": self.gb(self.working_set_tokens),
            "cells": [
                {"pool_gb": self.gb(cell.pool_tokens), **cell._asdict(), "hit_share": cell.hit_share}
                for cells in self.fleets.values()
                for cell in cells
            ],
            "sentences": self.sentences(),
        }


@contextmanager
def progress(console: Console, total: int) -> Iterator[Callable[[Iterable[TimedRequest]], Iterator[TimedRequest]]]:
    """What it gives passes requests on and shows how many there were."""
    columns = (TextColumn("requests"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total)

        def counted(requests: Iterable[TimedRequest]) -> Iterator[TimedRequest]:
            for number, sent in enumerate(requests, 1):
                yield sent
                if not number % TELL_EVERY:
                    bar.update(task, completed=number)

        yield counted


def _gain(step: AdviceStep) -> str:
    before, after = 1e3 * step.before.prefill_s, 1e3 * step.after.prefill_s
    return f"{step.points:+.1f} points of hits, mean prefill {before:,.0f} -> {after:,.0f} ms"


def in_gb(gb: float) -> str:
    return f"{gb:,.0f}" if gb >= 10 else f"{gb:.2g}"
