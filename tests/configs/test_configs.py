"""Every file under configs/ is right, and the generated ones are current."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.tools.config_keys import render_files
from docs.tools.whole_router import list_families
from router.config.reader import load_policies, read_config, read_policy_file
from router.config.yaml_source import load
from router.scheduling.policy.policy import build_policy
from router.telemetry.metrics.snapshot import RouterSnapshot
from router.telemetry.metrics.state import families
from tests.paths import CONFIGS
from tests.suites.json_schema import violations

MAIN = sorted(CONFIGS.glob("*.yaml"))
POLICIES = sorted((CONFIGS / "policies").glob("*.yaml"))


def test_there_is_something_to_test() -> None:
    assert {"quickstart.yaml", "production.yaml"} <= {file.name for file in MAIN}
    assert "warm.yaml" in {file.name for file in POLICIES}


@pytest.mark.parametrize("file", MAIN, ids=lambda file: file.name)
def test_main_files_are_right(file: Path) -> None:
    config = read_config(file)
    policies = load_policies(config)
    assert config.active in policies
    schema = json.loads((CONFIGS / "warmroute.schema.json").read_text(encoding="utf-8"))
    assert violations(load(file).data, schema) == []


@pytest.mark.parametrize("file", POLICIES, ids=lambda file: file.name)
def test_policy_files_can_be_built(file: Path) -> None:
    built = build_policy(file.stem, read_policy_file(file))
    assert built.name == file.stem


@pytest.mark.parametrize(
    "name",
    ["warmroute.schema.json", "policy.schema.json", "profile.schema.json", "trouble.schema.json"],
)
def test_generated_files_are_current(name: str) -> None:
    """Not so: run `make reference`."""
    assert (CONFIGS / name).read_text(encoding="utf-8") == render_files(CONFIGS)[CONFIGS / name]


def test_what_production_has_commented_out_is_right_too() -> None:
    """Code is commented out by `#` alone, prose begins with `# `; deeper code by `#` and at least two spaces."""
    text = (CONFIGS / "production.yaml").read_text(encoding="utf-8")
    code = re.sub(r"^( *)#((?:  )*(?:- )?[^\s#\"]+:(?: .*)?)$", r"\1\2", text, flags=re.MULTILINE)
    plain = yaml.safe_load(code.replace("<64 hex digits>", "a" * 64))
    schema = json.loads((CONFIGS / "warmroute.schema.json").read_text(encoding="utf-8"))
    assert violations(plain, schema) == []
    assert {"tls", "host", "port"} == set(plain["listen"])
    assert plain["index"] == {"key_secret_env": "WARMROUTE_KEY_SECRET"}


# the dashboard


def metric_names() -> set[str]:
    """Every series name that /metrics can have."""
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
    return {family.name + suffix for family in list_families() for suffix in suffixes.get(family.type, ("",))}


def expressions() -> list[str]:
    dashboard: dict[str, Any] = json.loads((CONFIGS / "grafana/warmroute.json").read_text(encoding="utf-8"))
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    variables = [v["query"]["query"] for v in dashboard["templating"]["list"] if v["type"] == "query"]
    return asked + variables


def test_the_dashboard_uses_only_metrics_that_exist() -> None:
    known = metric_names()
    used = {name for text in expressions() for name in re.findall(r"\b(?:warmroute|process)_\w+", text)}
    assert len(used) > 30
    assert used - known == set()


def test_the_dashboard_shows_every_metric_of_ours() -> None:
    text = "\n".join(expressions())
    hidden = {f.name for f in list_families() if f.name.startswith("warmroute_") and f.name not in text}
    assert hidden == set()


def test_the_dashboard_groups_by_labels_that_exist() -> None:
    labels = {label for family in list_families() for label in getattr(family, "_labelnames", ())}
    used = {
        word.strip()
        for text in expressions()
        for group in re.findall(r"by \(([^)]*)\)", text)
        for word in group.split(",")
    }
    assert used - labels - {"le", "job"} == set()


def test_the_dashboard_selects_the_deployment_everywhere() -> None:
    """Only the list of deployments has them all."""
    selectors = [one for text in expressions() for one in re.findall(r"\b(?:warmroute|process)_\w+(?:{[^}]*})?", text)]
    assert [one for one in selectors if 'job=~"$job"' not in one] == ["warmroute_in_flight_requests"]


def test_the_dashboard_counts_an_engine_once() -> None:
    """Each router reports each engine, so that a sum over routers would count it several times."""
    own = {"warmroute_target_requests", "warmroute_target_prefilling_requests"}  # of each router
    each = {f.name for f in families(RouterSnapshot()) if {"engine", "target"} & set(f._labelnames)} - own  # type: ignore[attr-defined]
    each -= {"warmroute_index_bytes", "warmroute_overlap_predictions"}  # memory and answers of each router
    assert len(each) > 20
    for name in each:
        for text in expressions():
            for before in re.findall(rf"(.*)\b{name}(?:_total)?\b", text):
                assert re.search(r"(max|min|avg) by \([^)]+\) \((\w+\()?$", before) or "label_values" in before, text


def test_panels_do_not_overlap() -> None:
    dashboard = json.loads((CONFIGS / "grafana/warmroute.json").read_text(encoding="utf-8"))
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not taken & cells, panel["title"]
        taken |= cells
