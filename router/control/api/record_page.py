"""A record as an HTML page: one file without scripts or external resources.

Its Content-Security-Policy enforces that: the style sheet is allowed by digest, and charts are SVG without style
attributes. Every chart stands beside a table with the same figures, so screen readers skip it. Records contain
names from clients and engines, so every value is escaped.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any, NamedTuple

import jinja2

from router.scheduling.policy.rationale import format_amount
from router.scheduling.policy.record_view import weighted_parts
from router.scheduling.policy.timeline import Side

COLOURS = 7  # classes c0 to c6 of the style sheet: parts of costs, in none of the sides' colours

MEANINGS: dict[Side, str] = {
    "client": "the client sends",
    "router": "the router computes",
    "wait": "the request waits",
    "engine": "the engine works",
}
LEAST_WIDTH = 0.4  # of a stage in the waterfall, in per cent, so that the shortest is seen


class Segment(NamedTuple):
    """A part of a bar, in per cent of the chart's width."""

    x: float
    width: float
    colour: str  # a class of the style sheet


class Bar(NamedTuple):
    """One candidate's cost in parts."""

    target: str
    values: Sequence[float]
    segments: Sequence[Segment]


class BarChart(NamedTuple):
    """Costs as stacked bars, cheapest first. Parts below 0 are to the left of `zero`, in per cent of the width."""

    names: Sequence[str]
    bars: Sequence[Bar]
    zero: float


def render_page(record: Mapping[str, Any]) -> str:
    """Render a record, as `record_view.describe_record` describes it, as HTML."""
    return _template().render(record=record, sides=MEANINGS, colours=COLOURS)


def stack_bars(choice: Mapping[str, Any]) -> BarChart | None:
    """Return the costs of a choice as bars of weighted terms, or of their parts where they have some, without
    those that are 0 everywhere. None if fewer than two are left.
    """
    candidates = sorted(choice["candidates"], key=lambda candidate: candidate["cost"])
    splits = [weighted_parts(candidate["terms"]) for candidate in candidates]
    names = [name for name in splits[0] if any(split[name] for split in splits)]
    if len(names) < 2:
        return None
    most = max(sum(max(0.0, value) for value in split.values()) for split in splits)
    least = min(sum(min(0.0, value) for value in split.values()) for split in splits)
    scale = 100 / ((most - least) or 1.0)
    bars = [
        Bar(candidate["target"], values, list(_stack(values, least, scale)))
        for candidate, split in zip(candidates, splits, strict=True)
        for values in [[split[name] for name in names]]
    ]
    return BarChart(names, bars, -least * scale)


class StageBar(NamedTuple):
    """One stage of the waterfall; `segment` None: it did not run, or where it lies is unknown."""

    name: str
    attempt: int | None
    start_ms: float | None
    duration_ms: float | None
    side: str
    segment: Segment | None


def draw_waterfall(record: Mapping[str, Any]) -> list[StageBar]:
    """Return the timeline of a record as bars, over the time from its arrival to its last known moment."""
    stages = record["timeline"]
    ends = [stage["start_ms"] + (stage["duration_ms"] or 0.0) for stage in stages if stage["start_ms"] is not None]
    whole_ms = max([record["duration_ms"] or 0.0, *ends]) or 1.0
    return [StageBar(**stage, segment=_place(stage, whole_ms)) for stage in stages]


def _place(stage: Mapping[str, Any], whole_ms: float) -> Segment | None:
    if stage["start_ms"] is None:
        return None
    x = 100 * stage["start_ms"] / whole_ms
    width = max(LEAST_WIDTH, 100 * (stage["duration_ms"] or 0.0) / whole_ms)
    return Segment(round(min(x, 100 - LEAST_WIDTH), 3), round(width, 3), stage["side"])


def _stack(values: Sequence[float], least: float, scale: float) -> Iterator[Segment]:
    """Yield a segment per value: those above 0 from 0 to the right, those below to the left."""
    right = left = -least * scale
    for i, value in enumerate(values):
        width = abs(value) * scale
        if value < 0:
            left -= width
        if width > 0:
            yield Segment(round(left if value < 0 else right, 3), round(width, 3), f"c{i % COLOURS}")
        right += width if value > 0 else 0.0


def _format(value: Any) -> Any:
    if value is None:
        return "\N{EN DASH}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return format_amount(value)
    return f"{value:,}" if isinstance(value, int) else value


def _format_time(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).isoformat(" ", "milliseconds")


@cache
def _template() -> jinja2.Template:
    """Return the page's template, compiled at its first use: that takes as long as a tenth of a router's start."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"shown": _format, "moment": _format_time}
    environment.filters |= {"stacked": stack_bars, "waterfall": draw_waterfall}
    return environment.from_string(_TEXT)


_TEXT = files("router.control.api").joinpath("record.html").read_text(encoding="utf-8")
_STYLE = b64encode(sha256(_TEXT.partition("<style>")[2].partition("</style>")[0].encode()).digest()).decode()

PAGE_HEADERS = {
    "content-security-policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "vary": "accept",
}
