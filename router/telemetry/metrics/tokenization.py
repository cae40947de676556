"""What is remembered of prompts, as metrics: how much memory it takes, and how much tokenising it spares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


class ModelTokenCounts(NamedTuple):
    """Prompt tokens of one model with a tokenizer here, since the start."""

    remembered: int  # found
    tokenised: int  # not found
    incremental: bool  # False: its tokenizer takes prompts only as a whole


class PrefixCacheState(NamedTuple):
    """Of all models together, but for `models`."""

    bytes: int
    limit_bytes: int
    evicted: int
    models: Mapping[str, ModelTokenCounts]


def remembered_families(now: PrefixCacheState | None) -> Iterator[Metric]:
    held = GaugeMetricFamily("warmroute_memory_bytes", "estimated memory of all that is remembered of prompts")
    limit = GaugeMetricFamily("warmroute_memory_limit_bytes", "most that it may take (`tokens.memory_bytes`)")
    evicted = CounterMetricFamily("warmroute_memory_evictions_total", "pieces and digests forgotten for want of room")
    of_model = ("model",)
    found = CounterMetricFamily("warmroute_remembered_tokens_total", "prompt tokens found remembered", labels=of_model)
    made = CounterMetricFamily("warmroute_tokenised_tokens_total", "prompt tokens tokenised here", labels=of_model)
    incremental = GaugeMetricFamily(
        "warmroute_tokenizer_incremental",
        "1 where only what is new in a prompt is tokenised, 0 where always the whole",
        labels=of_model,
    )
    if now is not None:
        held.add_metric((), now.bytes)
        limit.add_metric((), now.limit_bytes)
        evicted.add_metric((), now.evicted)
        for model, tokens in now.models.items():
            found.add_metric((model,), tokens.remembered)
            made.add_metric((model,), tokens.tokenised)
            incremental.add_metric((model,), tokens.incremental)
    yield from (held, limit, evicted, found, made, incremental)
