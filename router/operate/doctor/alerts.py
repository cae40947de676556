"""Evaluate the shipped alert rules on one or two scrapes of a router's metrics page.

Of the rules in `configs/prometheus/alerts.yaml`, only those that compare one metric with a number are evaluated. A
rate or an increase is taken between two scrapes of this run, so it covers only the present moment. Rules over a
longer past, or over several metrics, need Prometheus; they are only counted.
"""

from __future__ import annotations

import operator
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml
from prometheus_client.parser import text_string_to_metric_families

from router.config.lookup import SHIPPED
from router.operate.doctor.check import Check
from router.operate.doctor.finding import FleetFinding
from router.operate.doctor.subject import Subject

RULES = SHIPPED / "prometheus" / "alerts.yaml"
COMPARISON = re.compile(
    r"(?P<sum>sum(?: (?P<by>by|without) \((?P<names>[\w, ]+)\))?\s*\()?\s*(?P<rise>(?:rate|increase)\()?"
    r"(?P<metric>[a-z]\w+)(?:\{(?P<labels>[^}]*)\})?(?P<range>\[\w+\]\))?\s*\)?\s*(?P<is>==|>|<)\s*(?P<bound>-?[0-9.]+)"
)
LABEL = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')
RELATIONS = {"==": operator.eq, ">": operator.gt, "<": operator.lt}

Samples = dict[str, list[tuple[dict[str, str], float]]]


class AlertRule(NamedTuple):
    """An alert rule: one comparison of a metric with a number, or several joined by `or`."""

    name: str
    summary: str
    runbook: str
    lasting: str  # how long the rule must be true, such as `5m`; "" if it fires at once
    comparisons: tuple[re.Match[str], ...]


def read_rules(text: str) -> tuple[list[AlertRule], int]:
    """Return the rules that can be evaluated from a metrics page, and the number of the others."""
    loaded: Any = yaml.safe_load(text)
    rules = [rule for group in loaded["groups"] for rule in group["rules"] if "alert" in rule]
    found = []
    for rule in rules:
        parts = [COMPARISON.fullmatch(part.strip()) for part in " ".join(rule["expr"].split()).split(" or ")]
        matches = tuple(match for match in parts if match is not None and bool(match["rise"]) == bool(match["range"]))
        if len(matches) == len(parts):
            notes = rule.get("annotations") or {}
            texts = notes.get("summary", ""), notes.get("runbook_url", ""), rule.get("for", "")
            found.append(AlertRule(rule["alert"], *texts, matches))
    return found, len(rules) - len(found)


def check_alerts(subject: Subject) -> Iterator[FleetFinding]:
    """No alert would fire."""
    rules, _ = read_rules(RULES.read_text(encoding="utf-8")) if RULES.is_file() else ([], 0)
    for router in subject.routers:
        if router.error is not None:
            continue
        if (fault := router.metrics_fault) is not None:
            yield FleetFinding("unchecked", fault.what, "no alert was evaluated", fault.change, (router.url,))
        if router.metrics is None:
            continue
        first, later = read_samples(router.metrics), read_samples(router.later_metrics or router.metrics)
        for rule in rules:
            if labels := find_firing(rule, first, later):
                named = ", ".join(sorted({value for each in labels for value in each.values()})[:3])
                lasting = f" if it lasts for {rule.lasting}" if rule.lasting else ""
                yield FleetFinding(
                    "warning",
                    f"the alert {rule.name} fires{lasting}" + (f" ({named})" if named else ""),
                    re.sub(r"\{\{[^}]*\}\}", "...", rule.summary),
                    f"see {rule.runbook}" if rule.runbook else "see docs/operate/observe.md",
                    (router.url,),
                )


def find_firing(rule: AlertRule, first: Samples, later: Samples) -> list[dict[str, str]]:
    """Return the labels of the series for which the rule is true."""
    firing = []
    for comparison in rule.comparisons:
        before = {tuple(sorted(labels.items())): value for labels, value in first[comparison["metric"]]}
        selected = [one for one in later[comparison["metric"]] if _selects(comparison["labels"] or "", one[0])]
        if comparison["rise"]:
            selected = [(of, value - before.get(tuple(sorted(of.items())), 0.0)) for of, value in selected]
        if comparison["sum"]:
            selected = _sum(
                selected, set((comparison["names"] or "").split(", ")), without=comparison["by"] == "without"
            )
        relation, bound = RELATIONS[comparison["is"]], float(comparison["bound"])
        firing += [of for of, value in selected if relation(value, bound)]
    return firing


def read_samples(page: str) -> Samples:
    """Return all samples of a metrics page, by name."""
    found: Samples = defaultdict(list)
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found[sample.name].append((dict(sample.labels), sample.value))
    return found


def _sum(
    samples: list[tuple[dict[str, str], float]], names: set[str], *, without: bool
) -> list[tuple[dict[str, str], float]]:
    """Return the sums of samples by the labels `names`, or by all others."""
    sums: dict[tuple[tuple[str, str], ...], float] = defaultdict(float)
    for labels, value in samples:
        sums[tuple(sorted((name, of) for name, of in labels.items() if (name in names) != without))] += value
    return [(dict(group), value) for group, value in sums.items()]


def _selects(selector: str, labels: dict[str, str]) -> bool:
    for name, how, wanted in LABEL.findall(selector):
        value = labels.get(name, "")
        same = re.fullmatch(wanted, value) is not None if "~" in how else value == wanted
        if same == how.startswith("!"):
            return False
    return True


CHECKS = (Check("alerts.firing", "no alert would fire", "router", check_alerts),)
