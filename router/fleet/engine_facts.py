"""What every engine dialect offers: pure functions from bytes to domain values. One folder per engine.

Nothing here opens a connection; `feeds/` and `tokens/` do, and hand the bytes in.
"""

from __future__ import annotations

from typing import NamedTuple


class PoolTransferCounts(NamedTuple):
    """What one rank has loaded from the shared pool since its process started: counters, which a restart sets back."""

    operations: int
    blocks: int  # of each of its workers and cache groups, as every one of them loads for itself
    seconds: float  # of all operations together, though they may have run side by side


class Gauges(NamedTuple):
    """One rank's metrics page, the lines routing needs. None: the page does not say."""

    running: int | None
    waiting: int | None
    kv_usage: float | None
    block_tokens: int | None
    capacity_tokens: int | None
    adapters: frozenset[str] | None  # LoRA names that its running requests use
    max_adapters: int | None
    waiting_adapters: frozenset[str] | None = None  # LoRA names that its waiting requests ask for
    pool_loads: PoolTransferCounts | None = None
    output_tokens: int | None = None  # answer tokens since its process started: a counter, which a restart sets back


class ModelCard(NamedTuple):
    """One entry of an engine's `/v1/models`."""

    id: str
    root: str | None
    parent: str | None  # set on LoRA adapters: the base model's id
    max_model_len: int | None


class EventEndpoint(NamedTuple):
    """Where one rank publishes its KV events."""

    rank: int
    endpoint: str
    replay_endpoint: str | None
    topic: str
