"""Facts that engines report, as values: gauges, model cards and event endpoints, the same for every engine dialect.

Nothing here opens a connection: `backends/` does, and each dialect in `backends/` turns bytes into these values.
"""

from __future__ import annotations

from typing import NamedTuple


class PoolTransferCounts(NamedTuple):
    """Counters of one rank's loads from the shared pool since its process started; a restart resets them."""

    operations: int
    blocks: int  # counted for each worker and cache group, as each of them loads separately
    seconds: float  # sum over all operations, which may have run concurrently


class Gauges(NamedTuple):
    """The values of one rank's metrics page that routing needs; None for a value that the page does not report."""

    running: int | None
    waiting: int | None
    kv_usage: float | None
    block_tokens: int | None
    capacity_tokens: int | None
    adapters: frozenset[str] | None  # LoRA adapters of its running requests
    max_adapters: int | None
    waiting_adapters: frozenset[str] | None = None  # LoRA adapters of its waiting requests
    pool_loads: PoolTransferCounts | None = None
    output_tokens: int | None = None  # answer tokens since its process started; a restart resets the counter
    cache_blocks: int | None = None  # number of GPU blocks, which all cache groups share
    prefix_caching: bool | None = None  # whether it keeps the blocks of prompts for later ones
    started_wall_s: float | None = None  # start of the process, by its clock; several API servers report none


class ModelCard(NamedTuple):
    """One entry of an engine's `/v1/models`."""

    id: str
    root: str | None
    parent: str | None  # set on LoRA adapters: the base model's id
    max_model_len: int | None


class EventEndpoint(NamedTuple):
    """Address and topic of one rank's KV events."""

    rank: int
    endpoint: str
    replay_endpoint: str | None
    topic: str
