"""The comparison as Markdown: a table for each figure with all loads and routers, or a table for each load, with what
is doubtful.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tests.headtohead.comparison import Ratio, by_router, compare_figure, median_figure
from tests.headtohead.contenders import CONTENDERS, OURS
from tests.headtohead.control import Control
from tests.headtohead.loads import Load
from tests.headtohead.match import Match

BUSY_CORE, NO_IDLE, LATE_S = 0.8, 0.05, 0.05
TIMES = 3.0  # from which on a ratio is given instead of per cents
OVERVIEW = (
    ("Time to the first token, P90, s", "ttft_p90_s", "{:.2g}"),
    ("Prompt tokens found in the engine's cache", "hit_share", "{:.0%}"),
    ("Turns per second", "turns_per_s", "{:.1f}"),
)
HEAD = ("router", "turns/s", "TTFT p50, s", "p90", "p99", "hits", "failed", "CPU, ms/request", "memory, MB")


def render_overview(loads: Sequence[Load], matches: Sequence[Match]) -> Iterator[str]:
    """Yield a table for each figure: a row for each load, a column for each router that has played; tuned routers have
    one of their own. Values are medians over the seeds; in brackets as in `render`.
    """
    played = {load.name: found for load in loads if (found := by_router(matches, load.name))}
    there = [one for one in CONTENDERS if any(one.name in found for found in played.values())]
    for title, figure, form in OVERVIEW:
        yield from _overview(title, figure, form, played, [one.name for one in there if not one.tuned])
    if tuned := [one.name for one in there if one.tuned]:
        title, figure, form = OVERVIEW[0]
        yield from _overview(f"{title}, of tuned routers", figure, form, played, [OURS, *tuned])


def _overview(
    title: str, figure: str, form: str, played: Mapping[str, Mapping[str, Mapping[int, Match]]], names: Sequence[str]
) -> Iterator[str]:
    yield f"**{title}**\n"
    yield f"| load | seeds | {' | '.join(names)} |"
    yield f"|---|--:|{'--:|' * len(names)}"
    for load, found in played.items():
        seeds = len({seed for name in names for seed in found.get(name, {})})
        cells = [_cell(found.get(name, {}), found.get(OURS, {}), name, figure, form) for name in names]
        yield f"| {load} | {seeds} | {' | '.join(cells)} |"
    yield ""


def _cell(matches: Mapping[int, Match], ours: Mapping[int, Match], name: str, figure: str, form: str) -> str:
    return _median(matches, figure, form) + _beside(None if name == OURS else compare_figure(matches, ours, figure))


def render(loads: Sequence[Load], matches: Sequence[Match], controls: Sequence[Control]) -> str:
    """Return the page. Values are medians over the seeds. In brackets is the difference from ours, `=` if it is within
    the noise, nothing if there are too few seeds to know.
    """
    return "\n".join([*_controls(controls), *render_overview(loads, matches), *render_loads(loads, matches)])


def render_loads(loads: Sequence[Load], matches: Sequence[Match]) -> Iterator[str]:
    """Yield a table for each load that was played: a row for each router, a column for each figure."""
    for load in loads:
        yield from _load(load, by_router(matches, load.name))


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
    yield f"**{name}**" if name == OURS else name
    for figure, form in (
        ("turns_per_s", "{:.1f}"),
        ("ttft_p50_s", "{:.2g}"),
        ("ttft_p90_s", "{:.2g}"),
        ("ttft_p99_s", "{:.2g}"),
    ):
        yield _cell(matches, ours, name, figure, form)
    yield _median(matches, "hit_share", "{:.0%}")
    yield f"{sum(match.figures.failed for match in matches.values() if match.figures is not None)}"
    yield _median(matches, "cpu_ms", "{:.1f}")
    yield _median(matches, "rss_mb", "{:.0f}")


def _median(matches: Mapping[int, Match], figure: str, form: str) -> str:
    value = median_figure(matches, figure)
    text = "-" if value is None else form.format(value)
    return f"{float(text):g}" if "e" in text else text  # 120, not 1.2e+02


def _beside(ratio: Ratio | None) -> str:
    if ratio is None or ratio.is_equal is None:
        return ""
    if ratio.is_equal:
        return " (=)"
    return f" ({ratio.mean:,.0f} times)" if ratio.mean >= TIMES else f" ({ratio.mean - 1:+.0%})"


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
