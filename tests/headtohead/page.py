"""The comparison as Markdown: a table for each load, and what was left out or is doubtful."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

from tests.headtohead.comparison import Ratio, by_router, compare_figure
from tests.headtohead.contenders import CONTENDERS, OURS
from tests.headtohead.control import Control
from tests.headtohead.loads import Load
from tests.headtohead.match import Match, MatchFigures

BUSY_CORE, NO_IDLE, LATE_S = 0.8, 0.05, 0.05
HEAD = ("router", "turns/s", "TTFT p50, s", "p90", "p99", "hits", "failed", "CPU, ms/request", "memory, MB")


def render(loads: Sequence[Load], matches: Sequence[Match], controls: Sequence[Control]) -> str:
    """Return the page. Values are medians over the seeds. In brackets is the difference from ours, `=` if it is within
    the noise, nothing if there are too few seeds to know.
    """
    tables = [line for load in loads for line in _load(load, by_router(matches, load.name))]
    return "\n".join([*_controls(controls), *tables])


def _controls(controls: Sequence[Control]) -> Iterator[str]:
    if not controls:
        return
    yield "| router | sent to the engine that had the prompt | the same, after all caches were dropped | knows caches |"
    yield "|---|--:|--:|---|"
    for one in controls:
        if one.left_out is None:
            found = f"{one.found} of {one.trials} | {one.found_after_reset} of {one.trials}"
            yield f"| {one.router} | {found} | {'exactly' if one.is_exact else 'not'} |"
    yield ""


def _load(load: Load, played: Mapping[str, Mapping[int, Match]]) -> Iterator[str]:
    if not played:
        return
    seeds = sorted({seed for matches in played.values() for seed in matches})
    yield f"### {load.name.capitalize()}\n"
    yield f"{load.about}; {len(seeds)} seed{'s' * (len(seeds) != 1)}.\n"
    yield f"| {' | '.join(HEAD)} |"
    yield f"|---|{'--:|' * (len(HEAD) - 1)}"
    ours = played.get(OURS, {})
    for contender in CONTENDERS:
        if (matches := played.get(contender.name)) is not None:
            yield f"| {' | '.join(_row(contender.name, matches, ours))} |"
    yield ""
    yield from _doubts(played)


def _row(name: str, matches: Mapping[int, Match], ours: Mapping[int, Match]) -> Iterator[str]:
    figures = [match.figures for match in matches.values() if match.figures is not None]
    yield f"**{name}**" if name == OURS else name
    for figure, form in (
        ("turns_per_s", "{:.1f}"),
        ("ttft_p50_s", "{:.2g}"),
        ("ttft_p90_s", "{:.2g}"),
        ("ttft_p99_s", "{:.2g}"),
    ):
        ratio = None if name == OURS else compare_figure(matches, ours, figure)
        yield _median(figures, figure, form) + _beside(ratio)
    yield _median(figures, "hit_share", "{:.0%}")
    yield f"{sum(one.failed for one in figures)}"
    yield _median(figures, "cpu_ms", "{:.1f}")
    yield _median(figures, "rss_mb", "{:.0f}")


def _median(figures: Iterable[MatchFigures], name: str, form: str) -> str:
    values = [value for one in figures if (value := getattr(one, name)) is not None]
    return form.format(median(values)) if values else "-"


def _beside(ratio: Ratio | None) -> str:
    if ratio is None or ratio.is_equal is None:
        return ""
    return " (=)" if ratio.is_equal else f" ({ratio.mean - 1:+.0%})"


def _doubts(played: Mapping[str, Mapping[int, Match]]) -> Iterator[str]:
    """Yield a line for each router whose matches say more about this machine than about the router."""
    for name, matches in played.items():
        figures = [match.figures for match in matches.values() if match.figures is not None]
        if any((one.core_share or 0.0) > BUSY_CORE for one in figures):
            yield f"- {name} used over {BUSY_CORE:.0%} of a core.\n"
        if any((one.late_p99_s or 0.0) > LATE_S for one in figures):
            yield f"- Beside {name} the clients were late by over {LATE_S * 1e3:.0f} ms (p99).\n"
        if any(one.idle_share is not None and one.idle_share < NO_IDLE for one in figures):
            yield f"- Beside {name} the machine was idle for less than {NO_IDLE:.0%} of the time.\n"
