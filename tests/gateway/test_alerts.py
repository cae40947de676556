"""The alerting rules in `promtool`: they parse, and each fires on series of its fault and stays quiet on others."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.gateway.alerts import RULES, write_tests
from tests.gateway.conftest import need
from tests.gateway.install import program


@pytest.fixture
def promtool() -> Path:
    """The program `promtool`."""
    need("promtool")
    return program("promtool")


def run(promtool: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([promtool, *arguments], capture_output=True, text=True, timeout=120)


def test_the_rules_are_valid(promtool: Path) -> None:
    checked = run(promtool, "check", "rules", str(RULES))
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_each_rule_fires_on_its_fault_and_only_then(promtool: Path, tmp_path: Path) -> None:
    tested = run(promtool, "test", "rules", *map(str, write_tests(RULES, tmp_path)))
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_a_rule_that_does_not_fire_is_noticed(promtool: Path, tmp_path: Path) -> None:
    never = tmp_path / "rules.yaml"
    never.write_text(RULES.read_text(encoding="utf-8").replace("> 0.02 *", "> 2 *"), encoding="utf-8")
    (own,) = (file for file in write_tests(never, tmp_path) if "requests" in file.name)
    tested = run(promtool, "test", "rules", str(own))
    assert tested.returncode == 1
    assert "WarmrouteErrors" in tested.stdout + tested.stderr
