from __future__ import annotations

from router.features.tenants.tenant_tables import MAX_SERIES, MAX_TENANTS, TenantTables
from router.features.tenants.token_counts import TokenCounts
from router.telemetry.metrics.label_values import LabelValues
from router.telemetry.metrics.series import Counter


def build(listed: tuple[str, ...] = ()) -> tuple[TenantTables, dict[str, Counter]]:
    made: dict[str, Counter] = {}

    def create(name: str, meaning: str, *labels: str) -> Counter:
        made[name] = Counter(name, meaning, *labels)
        return made[name]

    return TenantTables(create, LabelValues(10_000), listed), made


def test_tokens_are_counted_by_kind() -> None:
    tables, made = build()
    tables.on_end("acme", "m", TokenCounts(10, 20, 30), 0.5)
    tables.on_end("acme", "m", TokenCounts(1, 2, 3), 0.25)
    tables.on_refusal("acme", "concurrent")
    assert made["tenant_requests_total"] == {("acme", "m"): 2}
    assert made["tenant_tokens_total"] == {
        ("acme", "m", "input"): 11,
        ("acme", "m", "cached"): 22,
        ("acme", "m", "output"): 33,
    }
    assert made["tenant_gpu_seconds_total"] == {("acme", "m"): 0.75}
    assert made["tenant_refusals_total"] == {("acme", "concurrent"): 1}


def test_labels_are_bounded_and_listed_tenants_always_have_one() -> None:
    tables, made = build(("listed",))
    for n in range(2 * MAX_TENANTS):
        tables.on_refusal(f"t{n}", "concurrent")
    tables.on_refusal("listed", "concurrent")
    refusals = made["tenant_refusals_total"]
    assert len(refusals) == MAX_TENANTS + 2
    assert (refusals["other", "concurrent"], refusals["listed", "concurrent"]) == (MAX_TENANTS, 1)
    for n in range(2 * MAX_SERIES):
        tables.on_end("listed", f"m{n}", TokenCounts(), 0.0)
    requests = made["tenant_requests_total"]
    assert len(requests) == MAX_SERIES + 1
    assert requests["listed", "other"] == MAX_SERIES
