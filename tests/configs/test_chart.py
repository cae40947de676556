"""The Helm chart, as far as it can be seen without Helm: `tests/gateway/test_chart.py` renders it."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from docs.tools.chart_schema import VALUES_SCHEMA
from docs.tools.examples import check_yaml
from router.errors import ConfigError
from tests.paths import CONFIGS, ROOT
from tests.suites.json_schema import violations

CHART = ROOT / "deploy" / "helm" / "warmroute"
SCHEMA: dict[str, Any] = json.loads(VALUES_SCHEMA.read_text(encoding="utf-8"))
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs/operate/kubernetes.md").read_text(encoding="utf-8")


def list_names(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of all values."""
    for name, value in values.items():
        yield f"{prefix}{name}"
        if isinstance(value, dict):
            yield from list_names(value, f"{prefix}{name}.")


def list_properties(schema: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of all values that the schema names."""
    for name, below in schema.get("properties", {}).items():
        yield f"{prefix}{name}"
        yield from list_properties(below, f"{prefix}{name}.")


def test_the_schema_is_one_and_takes_the_defaults() -> None:
    assert violations(VALUES, SCHEMA) == []


def test_every_value_has_a_default_and_a_schema() -> None:
    free = (
        "config.",
        "monitoring.dashboard.labels.",
        "resources.",
        "envoy.resources.",
    )  # whose content is not the chart's
    given = {name for name in list_names(VALUES) if not name.startswith(free)}
    assert given == set(list_properties(SCHEMA)) - {"global"}


def test_the_page_names_values_that_exist() -> None:
    known = {*list_names(VALUES), *list_properties(SCHEMA)}
    sections = {name for name in known if "." not in name}
    named = {
        name
        for name in re.findall(r"`([a-z]\w*(?:\.\w+)+)`", PAGE)
        if name.partition(".")[0] in sections and not name.startswith("config.")
    }
    assert "engines.labels" in named
    assert named <= known


def test_wrong_values_on_a_page_are_noticed() -> None:
    with pytest.raises(ConfigError, match="label"):
        check_yaml("engines: {label: {app: vllm}}\n", "values of the chart")
    with pytest.raises(ConfigError, match="manifest"):
        check_yaml("kind: Pod\n", "manifests")


def test_its_version_is_the_router_s() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert (chart["version"], chart["appVersion"]) == (project["version"], project["version"])


def test_rules_and_dashboard_are_the_shared_files() -> None:
    shared = {"alerts.yaml": CONFIGS / "prometheus/alerts.yaml", "dashboard.json": CONFIGS / "grafana/warmroute.json"}
    assert {file.name: file.resolve() for file in (CHART / "files").iterdir()} == shared
    assert all(file.is_symlink() for file in (CHART / "files").iterdir())


def test_no_file_is_mounted_by_sub_path() -> None:
    """A file that is mounted by subPath never changes."""
    texts = [file.read_text(encoding="utf-8") for file in (CHART / "templates").iterdir()]
    assert not [line for text in texts for line in text.splitlines() if re.search(r"^[^#]*subPath:", line)]
