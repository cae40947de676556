"""Figures of a rollout: failed requests, time to first token and hits, from two readings of a metrics page.

All are counters of the router since its start, of all its workers. What happened in between is their difference.
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
    """Requests that ended, and what came of them."""

    requests: float = 0.0
    failed: float = 0.0  # by the router's or an engine's fault
    prompt_tokens: float = 0.0
    cached_tokens: float = 0.0  # of those, as engines reported them
    ttft_buckets: Mapping[float, float] = {}  # answers that began within so many seconds; cumulative, the last is inf

    def since(self, earlier: TrafficFigures) -> TrafficFigures:
        """Return the counts after `earlier`."""
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
        """Failed requests of all that ended; None: none ended."""
        return self.failed / self.requests if self.requests > 0 else None

    @property
    def hit_share(self) -> float | None:
        """Cached tokens of all prompt tokens; None: no answer told its tokens."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens > 0 else None

    @property
    def ttft_p90_s(self) -> float | None:
        """Time to first token that 90 % stay within, linear within a bucket as `histogram_quantile` of Prometheus;
        the bound below the last bucket where it is in that one. None: no answer began.
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
    """Return the counters of a metrics page. Raises ValueError for a page of something else."""
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
