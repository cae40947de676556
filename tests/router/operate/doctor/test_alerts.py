"""Which alerts the doctor evaluates from metrics pages, and which of them fire."""

from __future__ import annotations

import pytest

from router.operate.doctor.alerts import RULES, find_firing, read_rules, read_samples

EVALUATED, _ = read_rules(RULES.read_text(encoding="utf-8"))
BY_NAME = {rule.name: rule for rule in EVALUATED}


@pytest.mark.parametrize(
    ("alert", "first", "later", "labels"),
    [
        ("WarmrouteBreakerOpen", "", 'warmroute_breaker_state{target="a/0",state="half_open"} 1', ["a/0"]),
        ("WarmrouteBreakerOpen", "", 'warmroute_breaker_state{target="a/0",state="open"} 0', None),
        ("WarmrouteBreakerOpen", "", 'warmroute_breaker_state{target="a/0",state="closed"} 1', None),
        (
            "WarmrouteBreakerOpen",
            "",
            'warmroute_breaker_state{target="a",state="open"} 1\nwarmroute_breaker_state{target="b",state="open"} 0',
            ["a"],
        ),
        ("WarmrouteStreamLag", "", 'warmroute_stream_lag_seconds{target="a/0"} 7.5', ["a/0"]),
        ("WarmrouteStreamUntrusted", "", 'warmroute_stream_trusted{target="a/0"} 1', None),
        ("WarmrouteDiscoveryStale", "", 'warmroute_discovery_age_seconds{source="dns"} 400', ["dns"]),
        ("WarmrouteAuditFailing", "warmroute_audit_failures_total 3", "warmroute_audit_failures_total 3", None),
        ("WarmrouteAuditFailing", "warmroute_audit_failures_total 3", "warmroute_audit_failures_total 4", []),
        (
            "WarmroutePoolLeaderless",
            "",
            'warmroute_pool_master_leads{master="a"} 0\nwarmroute_pool_master_leads{master="b"} 1',
            None,
        ),
        ("WarmroutePoolLeaderless", "", 'warmroute_pool_master_leads{master="a"} 0', []),
    ],
)
def test_a_rule_fires_where_its_comparison_is_true(
    alert: str, first: str, later: str, labels: list[str] | None
) -> None:
    found = find_firing(BY_NAME[alert], read_samples(first + "\n"), read_samples(later + "\n"))
    assert [sorted(each.values()) for each in found] == ([] if labels is None else [sorted(labels)])


def test_rules_over_several_metrics_are_left_to_prometheus() -> None:
    rules, others = read_rules(
        "groups: [{name: g, rules: [{alert: A, expr: 'ab > 1'}, {alert: B, expr: 'ab > bc'}, {record: r, expr: a}]}]"
    )
    assert ([rule.name for rule in rules], others) == (["A"], 1)
    assert len(EVALUATED) > 12
