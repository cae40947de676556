"""Figures of a rollout: failed requests, time to first token and hits, from two readings of a metrics page.

All figures are counters since the router's start, summed over its workers. The difference of two readings covers
the time between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from math import inf
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

QUANTILE = 0.9
NOT_FAILED = frozenset(("client_gone", "cut", "engine_4xx"))  # the client's reasons, of `telemetry/failure.py`


class TrafficFigures(NamedTuple):
    """Counts of the requests that ended, and of their results."""

    requests: float = 0.0
    failed: float = 0.0  # by the router's or an engine's fault
    prompt_tokens: float = 0.0
    cached_tokens: float = 0.0  # of the prompt tokens, as reported by engines
    ttft_buckets: Mapping[float, float] = {}  # answers that began within so many seconds; cumulative, the last is inf

    def since(self, earlier: TrafficFigures) -> TrafficFigures:
        """Return the counts since the reading `earlier`."""
        buckets = {at: count - earlier.ttft_buckets.get(at, 0.0) for at, count in self.ttft_buckets.items()}
        return TrafficFigures(
            self.requests - earlier.requests,
            self.failed - earlier.failed,
            self.prompt_tokens - earlier.prompt_tokens,
            self.cached_tokens - earlier.cached_tokens,
            buckets,
        )

    @property
    def failed_share(self) -> float | None:
        """Share of failed requests among those that ended. None if none ended."""
        return self.failed / self.requests if self.requests > 0 else None

    @property
    def hit_share(self) -> float | None:
        """Share of cached tokens among prompt tokens. None if no answer reported its tokens."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens > 0 else None

    @property
    def ttft_p90_s(self) -> float | None:
        """90th percentile of the time to first token, interpolated within a bucket as by `histogram_quantile` of
        Prometheus; in the last bucket, that bucket's lower bound. None if no answer began.
        """
        bounds = [(0.0, 0.0), *sorted(self.ttft_buckets.items())]
        rank = QUANTILE * bounds[-1][1]
        if rank <= 0:
            return None
        for (low, below), (high, within) in pairwise(bounds):
            if within >= rank:
                return low if high == inf else low + (high - low) * (rank - below) / (within - below)
        return None


def read_figures(page: str) -> TrafficFigures:
    """Return the counters of a router's metrics page. Raises ValueError for any other page."""
    if "warmroute_" not in page:
        raise ValueError("this is no metrics page of warmroute")
    sums = dict.fromkeys(("requests", "errors", "prompt_tokens", "delivered_tokens"), 0.0)
    buckets: dict[float, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            name = sample.name.removeprefix("warmroute_").removesuffix("_total")
            if name == "ttft_seconds_bucket":
                bound = float(sample.labels["le"])
                buckets[bound] = buckets.get(bound, 0.0) + sample.value
            elif name == "errors" and sample.labels["reason"] in NOT_FAILED:
                continue
            elif name in sums:
                sums[name] += sample.value
    return TrafficFigures(sums["requests"], sums["errors"], sums["prompt_tokens"], sums["delivered_tokens"], buckets)
