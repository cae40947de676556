"""Handing of token ids, as metrics: who takes them, how many prompts went with them, and why others did not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


class PassthroughState(NamedTuple):
    takers: Mapping[str, bool] = {}  # by instance
    handed: Mapping[str, int] = {}  # attempts, by base model
    unhanded: Mapping[str, int] = {}  # attempts that had ids to hand, by why they went without


def handing_families(now: PassthroughState) -> Iterator[Metric]:
    takes = GaugeMetricFamily(
        "warmroute_token_id_passthrough_supported",
        "1 for an instance that was seen to take token ids",
        labels=("instance",),
    )
    handed = CounterMetricFamily(
        "warmroute_token_id_passthrough_prompts_total",
        "prompts sent to an engine together with their token ids",
        labels=("model",),
    )
    unhanded = CounterMetricFamily(
        "warmroute_token_id_passthrough_skipped_total",
        "prompts whose token ids were known and that were sent without them, by why",
        labels=("reason",),
    )
    for instance, taking in now.takers.items():
        takes.add_metric((instance,), taking)
    for model, count in now.handed.items():
        handed.add_metric((model,), count)
    for reason, count in now.unhanded.items():
        unhanded.add_metric((reason,), count)
    yield from (takes, handed, unhanded)
