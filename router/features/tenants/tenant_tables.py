"""Counters of the tenants' usage and refusals.

Tenants listed in the settings and the first `MAX_TENANTS` others have a label of their own. Together they have at
most `MAX_SERIES` pairs of a tenant and a model; beyond these, the model becomes `other`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from router.features.tenants.token_counts import TokenCounts
from router.telemetry.metrics.label_values import OTHER, LabelValues
from router.telemetry.metrics.series import Counter

MAX_TENANTS = 256
MAX_SERIES = 2_048


class CreateCounter(Protocol):
    def __call__(self, name: str, meaning: str, *labels: str) -> Counter: ...


class TenantTables:
    """The counters by tenant. `create` adds a counter to the metrics page; `model` returns the label of a model;
    `listed` tenants always have a label.
    """

    def __init__(self, create: CreateCounter, model: LabelValues, listed: Iterable[str]) -> None:
        listed = list(listed)
        self._tenant = LabelValues(MAX_TENANTS + len(listed))
        for name in listed:
            self._tenant(name)
        self._model = model
        self._pairs: set[tuple[str, str]] = set()
        pair = ("tenant", "model")
        self._requests = create("tenant_requests_total", "requests of tenants ended, in whatever way", *pair)
        tokens = "tokens of tenants: input (computed), cached (found in a cache), output"
        self._tokens = create("tenant_tokens_total", tokens, *pair, "kind")
        self._gpu_s = create("tenant_gpu_seconds_total", "GPU time of tenants' requests, estimated", *pair)
        self._refusals = create("tenant_refusals_total", "requests of tenants refused, by reason", "tenant", "reason")

    def on_end(self, tenant: str, model: str, tokens: TokenCounts, gpu_s: float) -> None:
        """Count a request that ended."""
        pair = tenant, model = self._label(tenant, model)
        self._requests[pair] += 1
        self._tokens[tenant, model, "input"] += tokens.input_tokens
        self._tokens[tenant, model, "cached"] += tokens.cached_tokens
        self._tokens[tenant, model, "output"] += tokens.output_tokens
        self._gpu_s[pair] += gpu_s

    def on_refusal(self, tenant: str, reason: str) -> None:
        """Count a request that was refused. Reasons are a closed set."""
        self._refusals[self._tenant(tenant), reason] += 1

    def _label(self, tenant: str, model: str) -> tuple[str, str]:
        if (pair := (tenant, model)) in self._pairs:  # the usual case: these are labels themselves
            return pair
        pair = self._tenant(tenant), self._model(model)
        if pair in self._pairs:
            return pair
        if len(self._pairs) >= MAX_SERIES:
            return pair[0], OTHER
        self._pairs.add(pair)
        return pair
