"""`warmroute policy` against a running admin API."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.cli.admin.policy import policy
from router.errors import ConfigError, WarmrouteError
from tests.router.cli.admin.conftest import Running
from tests.router.control.control_plane import BROKEN, EXPERIMENT, TEXTS


def test_list_says_what_is_in_use_and_what_went_wrong(router: Running) -> None:
    router.here(router.house.control.start_experiment, EXPERIMENT, "ann")
    with pytest.raises(ConfigError):
        router.here(router.house.control.put_policy, "new", BROKEN, "ann")
    said = router.said(policy, "list")
    rows = {line.split()[0]: line.split()[2:] for line in said.splitlines() if line.startswith(" ") and line.strip()}
    assert rows["near"] == ["active,", "arm", "50%"]
    assert rows["far"] == ["arm", "50%"]
    assert rows["other"] == ["-", "-"]
    assert "admin: not in force since 1970-01-01 01:23:20 UTC: policies.new: scorers[0]" in said
    assert "undo would take back: start experiment of near, far" in said


def test_show_prints_what_put_takes(router: Running, tmp_path: Path) -> None:
    file = tmp_path / "near.yaml"
    file.write_text(router.said(policy, "show", "near"))
    assert "prefix_overlap" in file.read_text()
    assert "nothing changes: it is so already" in router.said(policy, "put", str(file))


def test_plan_put_activate_undo_audit(router: Running, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(TEXTS["far"])
    planned = router.said(policy, "plan", str(file))
    assert planned.splitlines()[:2] == [
        "would: put policy mine and activate it",
        "2 of the last 2 choices would change (100.0%)",
    ]
    assert router.house.active == "near"
    assert "done: put policy mine" in router.said(policy, "put", str(file))
    assert "would: activate mine" in router.said(policy, "plan", "mine")
    assert "done: activate mine" in router.said(policy, "activate", "mine")
    assert router.house.active == "mine"
    assert "would: undo" in router.said(policy, "undo", "--dry-run")
    assert "undone: activate mine" in router.said(policy, "undo")
    assert router.house.active == "near"
    said = router.said(policy, "audit", "--limit", "2")
    assert "activate mine" in said
    assert "put policy mine" not in said
    assert "anybody" in said


def test_put_under_another_name_and_activate(router: Running, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(TEXTS["far"])
    router.said(policy, "put", str(file), "--name", "yours", "--activate")
    assert router.house.active == "yours"


def test_what_is_typed_wrong(router: Running, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: cannot be read: no such file"):
        router.said(policy, "put", str(tmp_path / "nowhere.yaml"))
    with pytest.raises(ConfigError, match='unknown policy "nera": did you mean "near"'):
        router.said(policy, "activate", "nera")
    with pytest.raises(WarmrouteError, match="there is no switch left to undo"):
        router.said(policy, "undo")
    (tmp_path / "a b.yaml").write_text(TEXTS["far"])
    with pytest.raises(ConfigError, match="policy 'a b': a name has 1 to 100 letters"):
        router.said(policy, "put", str(tmp_path / "a b.yaml"))
