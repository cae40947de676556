"""The samples of a feature's metrics, as a test compares them."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric


def samples_of(families: Iterable[Metric]) -> dict[tuple[str, ...], float]:
    """Values by name and label values."""
    return {(sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples}
