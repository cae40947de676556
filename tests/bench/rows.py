"""All rows of the benchmark in the order in which they are measured: short ones first, the soak last."""

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
    precise,
    soak,
    streams,
    tracing,
)
from tests.bench.row import Row

ROWS: tuple[Row, ...] = (
    *data_path.ROWS,
    *gateway.ROWS,
    *precise.ROWS,
    *agent_turns.ROWS,
    *cold.ROWS,
    *kv_aware.ROWS,
    *event_storm.ROWS,
    *streams.ROWS,
    *continued.ROWS,
    *apart.ROWS,
    *live.ROWS,
    *tracing.ROWS,
    *soak.ROWS,
)
