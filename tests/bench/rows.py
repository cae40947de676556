"""All rows of the benchmark in the order in which they are measured."""

from __future__ import annotations

from tests.bench import (
    agent_turns,
    apart,
    cold,
    continued,
    data_path,
    event_storm,
    gateway,
    kv_aware,
    live,
    placing,
    precise,
    renderers,
    simulated,
    start,
    streams,
    tenants,
    tracing,
)
from tests.bench.row import Row

BESIDE_PURE = frozenset(
    {"small", "large", "chunk", "precise", "precise-small", "warm-turn", "event-storm", "streams", "open-streams"}
    | {"index", "index-memory", "handed", "decisions", "simulated"}
)
"""Rows that are measured on the pure build as well: what compiling is meant to make faster."""

ROWS: tuple[Row, ...] = (
    *data_path.ROWS,
    *gateway.ROWS,
    *precise.ROWS,
    *agent_turns.ROWS,
    *renderers.ROWS,
    *placing.ROWS,
    *cold.ROWS,
    *kv_aware.ROWS,
    *event_storm.ROWS,
    *streams.ROWS,
    *continued.ROWS,
    *apart.ROWS,
    *simulated.ROWS,
    *start.ROWS,
    *live.ROWS,
    *tracing.ROWS,
    *tenants.ROWS,
)
