"""The report of `warmroute advise`: pool sizes in GB, two tables, the main findings as sentences, JSON, and a
chart.

People give pool sizes in GB, and the estimate counts tokens; the profile's KV bytes per token convert between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console

from router.cli.terminal.drawing import bare, canvas, label, save, write_heading
from router.cli.terminal.output import Grid, make_grid, progress_bar
from router.lab.engine_profile import EngineProfile
from router.lab.simulator.scenario import LinkSpeed
from router.lab.simulator.sizing import Placement, SizingAdvice, SizingCell
from router.lab.sweep import options
from router.lab.workloads.model import TimedRequest

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LADDER_GB = [digit * 10.0**power for power in range(-3, 6) for digit in (1, 2, 5)]
LEAST_SHARE = 0.01  # of the working set: smaller pools of the ladder are not worth a column
LEAST_POINTS = 0.05
PROGRESS_EVERY = 64  # requests
COLOURS = ("#b9d3e6", "#8ab4d4", "#5b94c0", "#2f6f9f", "#1f4e73", "#123149")

Fleet = tuple[int, Placement]


def parse_sizes_gb(text: str | None) -> list[float]:
    """Return the sizes of `--pool-gb`, 0 first. If `text` is None, return a ladder of sizes, which `AdviceReport`
    shortens. Raises ConfigError.
    """
    if text is None:
        return [0.0, *LADDER_GB]
    sizes = {0.0}
    for part in options.parse_list("--pool-gb", text):
        sizes.add(0.0 if part == "0" else options.parse_number("--pool-gb", part))
    return sorted(sizes)


class AdviceStep(NamedTuple):
    """The change from one pool to the next bigger one, or from one placement to the other."""

    before: SizingCell
    after: SizingCell

    @property
    def points(self) -> float:
        """Percentage points of hits gained."""
        return 100 * (self.after.hit_share - self.before.hit_share)

    def __str__(self) -> str:
        before, after = 1e3 * self.before.prefill_s, 1e3 * self.after.prefill_s
        return f"{self.points:+.1f} points of hits, mean prefill {before:,.0f} -> {after:,.0f} ms"


class AdviceReport:
    def __init__(
        self, workload: str, profile: EngineProfile, link: LinkSpeed, advice: SizingAdvice, *, whole_ladder: bool
    ) -> None:
        """`whole_ladder`: keep every size, because the user gave them; otherwise only the sizes of interest."""
        self.workload = workload
        self.profile = profile
        self.link = link
        self.working_set_tokens = advice.working_set_tokens
        cells = advice.cells if whole_ladder else self._of_interest(advice.cells)
        self.fleets: dict[Fleet, list[SizingCell]] = {}
        for cell in cells:
            self.fleets.setdefault((cell.instances, cell.placement), []).append(cell)

    def _of_interest(self, cells: Iterable[SizingCell]) -> list[SizingCell]:
        """Return the cells without a pool, and those of pools from `LEAST_SHARE` of the working set up to the first
        pool that holds all of it.
        """
        least = LEAST_SHARE * self.working_set_tokens
        enough = min((cell.pool_tokens for cell in cells if cell.pool_tokens >= self.working_set_tokens), default=None)
        return [
            cell
            for cell in cells
            if not cell.pool_tokens or (cell.pool_tokens >= least and (enough is None or cell.pool_tokens <= enough))
        ]

    def gb(self, tokens: int) -> float:
        """Return the GB that the KV of `tokens` takes."""
        return tokens * self.profile.kv_bytes_per_token / 1e9

    def title(self) -> str:
        requests = next(iter(self.fleets.values()))[0].requests
        size = f"all different blocks are {in_gb(self.gb(self.working_set_tokens))} GB"
        return f"{self.workload}: {requests:,} requests on {self.profile.name}; {size}"

    def grids(self) -> list[Grid]:
        """Return a table of hits and one of prefill times: a row per fleet, a column per pool size."""
        hits = self._grid("hits, % of the prompts' tokens", lambda cell: f"{100 * cell.hit_share:.1f}")
        return [hits, self._grid("mean prefill, ms, loading included", lambda cell: f"{1e3 * cell.prefill_s:,.0f}")]

    def _grid(self, title: str, entry: Callable[[SizingCell], str]) -> Grid:
        pools = [cell.pool_tokens for cell in next(iter(self.fleets.values()))]
        names = [f"{in_gb(self.gb(tokens))} GB" if tokens else "no pool" for tokens in pools]
        rows = (
            (str(instances), placement if instances > 1 else "", *map(entry, cells))
            for (instances, placement), cells in self.fleets.items()
        )
        return make_grid(title, ("instances", "placed", *names), rows, labels=2)

    def sentences(self) -> list[str]:
        """Return sentences per fleet size: the pool step with most hits per GB, and what placement alone gains."""
        lines = []
        for (instances, placement), cells in self.fleets.items():
            if placement != "by prefix":
                continue
            name = f"{instances} instance{'s' if instances > 1 else ''}"
            lines.append(f"{name}: {self._pool_sentence(cells)}")
            if at_random := self.fleets.get((instances, "at random")):
                step = AdviceStep(at_random[0], cells[0])
                lines.append(f"{name}, no pool: placed by prefix, not at random: {step}")
        return lines

    def _pool_sentence(self, cells: list[SizingCell]) -> str:
        steps = [AdviceStep(*pair) for pair in pairwise(cells)]
        if not any(step.points >= LEAST_POINTS for step in steps):
            return "none of these pools adds hits to those of the instances' own caches"
        best = max(steps, key=lambda step: step.points / (step.after.pool_tokens - step.before.pool_tokens))
        before, after = self.gb(best.before.pool_tokens), self.gb(best.after.pool_tokens)
        return f"{in_gb(after - before)} GB more pool ({in_gb(before)} -> {in_gb(after)} GB): {best}"

    def as_json(self) -> dict[str, Any]:
        return {
            "workload": self.workload,
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
def counting(console: Console, total: int) -> Iterator[Callable[[Iterable[TimedRequest]], Iterator[TimedRequest]]]:
    """Show a progress bar. Yields a function that passes requests through and counts them on the bar."""
    with progress_bar(console) as bar:
        task = bar.add_task("requests", total=total)

        def counted(requests: Iterable[TimedRequest]) -> Iterator[TimedRequest]:
            for number, request in enumerate(requests, 1):
                yield request
                if not number % PROGRESS_EVERY:
                    bar.update(task, completed=number)

        yield counted


def in_gb(gb: float) -> str:
    """Return `gb` in two significant digits, or whole from 10 on."""
    return f"{gb:,.0f}" if gb >= 10 else f"{gb:.2g}"


def draw(report: AdviceReport, file: Path) -> None:
    """Draw the chart to `file`. Raises WarmrouteError when it cannot be written."""
    save(make_chart(report), file)


def make_chart(report: AdviceReport) -> Figure:
    """Return the chart: a panel of hits and one of prefill times."""
    figure = canvas(10.5, 4.4)
    hits, times = figure.subplots(1, 2)
    _lines(hits, report, lambda cell: 100 * cell.hit_share)
    _lines(times, report, lambda cell: 1e3 * cell.prefill_s)
    label(hits, "hits, % of the prompts' tokens")
    label(times, "mean prefill, ms, loading included")
    handles, labels = hits.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=8.5, title="instances")
    write_heading(figure, f"What a pool would bring: {Path(report.workload).name} on {report.profile.name}")
    return figure


def _lines(axes: Axes, report: AdviceReport, figure: Callable[[SizingCell], float]) -> None:
    """Draw a line per fleet, a colour per fleet size: solid if placed by prefix, dashed if placed at random."""
    sizes = [report.gb(cell.pool_tokens) for cell in next(iter(report.fleets.values()))]
    counts = sorted({instances for instances, _ in report.fleets})
    for (instances, placement), cells in report.fleets.items():
        colour = COLOURS[round(counts.index(instances) * (len(COLOURS) - 1) / max(1, len(counts) - 1))]
        name = f"{instances}, {placement}" if instances > 1 else "1"
        style: dict[str, Any] = {"ls": "-", "lw": 1.9, "marker": "o", "ms": 4}
        if placement == "at random":
            style = {"ls": "--", "lw": 1.2}
        axes.plot(range(len(cells)), [figure(cell) for cell in cells], color=colour, label=name, **style)
    axes.set_xticks(range(len(sizes)), ["none" if not size else in_gb(size) for size in sizes], rotation=40)
    label(axes, x="pool, GB")
    axes.set_ylim(bottom=0)
    bare(axes, 8.5, "y")
