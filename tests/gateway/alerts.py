"""The alerting rules, and the series with which `promtool` tests them (`alert_cases.yaml`)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import yaml

from tests.paths import CONFIGS

RULES = CONFIGS / "prometheus/alerts.yaml"
CASES = Path(__file__).with_name("alert_cases.yaml")
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
SECONDS = {"WarmrouteSlowFirstToken": ("> 20", "> 1"), "WarmrouteDiscoveryStale": ("> 300", "> 20")}


class Rule(NamedTuple):
    group: str
    alert: str
    expr: str
    severity: str
    summary: str
    runbook_url: str


class Case(msgspec.Struct, forbid_unknown_fields=True):
    """Series in the notation of promtool (`0+1x60`: 61 samples that rise by 1), by their selector."""

    fires: dict[str, str]
    quiet: dict[str, str]
    summary: str  # as it reads when it fires
    labels: dict[str, str] = {}  # of the alert, besides its severity
    at: str = "60m"
    interval: str = "1m"  # of samples, and of evaluations


def read_rules() -> list[Rule]:
    """Return every rule, in the order of the file."""
    loaded = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    return [
        Rule(group["name"], rule["alert"], rule["expr"], rule["labels"]["severity"], **rule["annotations"])
        for group in loaded["groups"]
        for rule in group["rules"]
    ]


def read_cases() -> dict[str, Case]:
    """Return the cases by alert, in the order of the file. Raises msgspec.ValidationError."""
    return msgspec.convert(yaml.safe_load(CASES.read_text(encoding="utf-8")), dict[str, Case])


def write_faster_rules(file: Path) -> None:
    """Write the rules with durations that a test can wait for: a tenth, from five minutes on a thirtieth, from half an
    hour on a sixtieth. Two rules also compare with seconds (`SECONDS`).
    """
    rules = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        if "for" in rule:
            rule["for"] = _faster(rule["for"])
        rule["expr"] = re.sub(r"(?<=\[)\w+(?=\])|(?<=offset )\w+", lambda found: _faster(found[0]), rule["expr"])
        if rule["alert"] in SECONDS:
            usual, faster = SECONDS[rule["alert"]]
            assert usual in rule["expr"], rule["alert"]
            rule["expr"] = rule["expr"].replace(usual, faster)
    file.write_text(yaml.safe_dump(rules), encoding="utf-8")


def _faster(duration: str) -> str:
    seconds = int(duration[:-1]) * UNITS[duration[-1]]
    divisor = 10 if seconds < 300 else 30 if seconds < 1800 else 60
    return f"{seconds * 1000 // divisor}ms"


def write_tests(rules: Path, folder: Path) -> list[Path]:
    """Write the input files of `promtool test rules`, and return their paths: two tests of each rule.

    promtool evaluates every rule of a file for every test, so each group and each interval has files of its own.
    """
    cases, files = read_cases(), []
    groups = {group["name"]: group for group in yaml.safe_load(rules.read_text(encoding="utf-8"))["groups"]}
    for name, interval in sorted({(rule.group, cases[rule.alert].interval) for rule in read_rules()}):
        own = [rule for rule in read_rules() if (rule.group, cases[rule.alert].interval) == (name, interval)]
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({"groups": [groups[name]]}), encoding="utf-8")
        tests = [test for rule in own for test in _pair(rule, cases[rule.alert])]
        content = {"rule_files": [f"{name}.yaml"], "evaluation_interval": interval, "tests": tests}
        files.append(folder / f"{name}-{interval}.test.yaml")
        files[-1].write_text(yaml.safe_dump(content), encoding="utf-8")
    return files


def _pair(rule: Rule, case: Case) -> Iterator[dict[str, Any]]:
    alert = {
        "exp_labels": {"severity": rule.severity} | case.labels,
        "exp_annotations": {"summary": case.summary, "runbook_url": rule.runbook_url},
    }
    for name, series, expected in (("fires", case.fires, [alert]), ("quiet", case.quiet, [])):
        yield {
            "name": f"{rule.alert} {name}",
            "interval": case.interval,
            "input_series": [{"series": selector, "values": values} for selector, values in series.items()],
            "alert_rule_test": [{"eval_time": case.at, "alertname": rule.alert, "exp_alerts": expected}],
        }
