"""The alerting rules: their metrics and labels exist, and each has a runbook entry and series to be tested with.

What the rules do with those series is tested with `promtool`, in `tests/gateway/test_alerts.py`.
"""

from __future__ import annotations

import re

import pytest

from docs.tools.pages import DOCS
from docs.tools.whole_router import list_families
from tests.gateway.alerts import Rule, read_cases, read_rules

RULES = read_rules()
SET_BY_PROMETHEUS = {"job", "instance"}  # a metric's own label of such a name would be renamed `exported_...`
RUNBOOK = re.compile(
    r"^### (Warmroute\w+)\n\n`(\w+)`\n\n"
    r"- \*\*Means\*\*: .+?\n- \*\*Users notice\*\*: .+?\n- \*\*Look at\*\*: .+?\n- \*\*Do\*\*: .+?\n(?=\n|\Z)",
    re.MULTILINE | re.DOTALL,
)


def exposition() -> dict[str, set[str]]:
    """Labels of every series that Prometheus stores of /metrics, by name."""
    found = {}
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
    for family in list_families():
        labels = {*getattr(family, "_labelnames", ()), *SET_BY_PROMETHEUS, "le"}
        for suffix in suffixes.get(family.type, ("",)):
            found[family.name + suffix] = labels
    return found


def labels_of(rule: Rule) -> set[str]:
    """Labels that the rule selects, groups by, or names in its summary."""
    selected = set(re.findall(r"(\w+)(?:=|!=|=~|!~)\"", rule.expr))
    lists = re.findall(r"\b(?:by|without|on) \(([^)]*)\)", rule.expr)
    grouped = {label.strip() for one in lists for label in one.split(",") if label.strip()}
    return selected | grouped | set(re.findall(r"\$labels\.(\w+)", rule.summary))


def test_no_metric_has_a_label_that_prometheus_sets() -> None:
    labels = {family.name: {*getattr(family, "_labelnames", ())} for family in list_families()}
    assert len(labels) > 100
    assert {name for name, own in labels.items() if own & SET_BY_PROMETHEUS} == set()


def test_metrics_are_in_base_units() -> None:
    scaled = re.compile(r"_(ns|us|ms|kb|mb|gb|percent)(_|$)")
    assert {family.name for family in list_families() if scaled.search(family.name)} == set()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.alert)
def test_metrics_and_labels_of_a_rule_exist(rule: Rule) -> None:
    series = exposition()
    names = set(re.findall(r"\b(?:warmroute|process)_\w+", rule.expr))
    assert names
    assert names <= series.keys()
    assert labels_of(rule) <= set().union(*(series[name] for name in names))


def test_what_does_not_exist_is_noticed() -> None:
    wrong = RULES[0]._replace(expr='sum by (targte) (warmroute_requests_total{statsu="5xx"})')
    assert {"targte", "statsu"} <= labels_of(wrong)
    assert not {"targte", "statsu"} & exposition()["warmroute_requests_total"]


def test_every_rule_has_its_runbook_entry_and_every_entry_its_rule() -> None:
    page = (DOCS / "operate/alerts.md").read_text(encoding="utf-8")
    assert RUNBOOK.findall(page) == [(rule.alert, rule.severity) for rule in RULES]
    assert re.findall(r"^### (\w+)", page, re.MULTILINE) == [rule.alert for rule in RULES]
    assert [rule.runbook_url for rule in RULES] == [f"docs/operate/alerts.md#{rule.alert.lower()}" for rule in RULES]
    assert {rule.severity for rule in RULES} == {"page", "ticket"}


def test_names_and_summaries_are_unique() -> None:
    assert len({rule.alert for rule in RULES}) == len({rule.summary for rule in RULES}) == len(RULES)
    assert all(len(rule.summary) > 20 for rule in RULES)


def test_every_rule_has_series_on_which_it_fires_and_on_which_it_does_not() -> None:
    series = exposition() | {"up": SET_BY_PROMETHEUS}
    cases = read_cases()
    assert list(cases) == [rule.alert for rule in RULES]
    for alert, case in cases.items():
        assert case.fires, alert
        assert case.quiet != case.fires
        for selector in [*case.fires, *case.quiet]:
            name, _, labels = selector.partition("{")
            assert set(re.findall(r"(\w+)=", labels)) <= series[name], selector
