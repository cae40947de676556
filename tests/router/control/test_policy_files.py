"""What of the files takes effect live, and what needs a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.control.policy_files import PolicyFiles, find_restart_keys, read
from router.errors import ConfigError

MAIN = "fleet: {instances: [{url: 'http://127.0.0.1:1'}]}\n"
POLICY = "scorers: [{name: random}]"


def put(folder: Path, text: str) -> PolicyFiles:
    file = folder / "main.yaml"
    file.write_text(MAIN + text)
    return read(file)


def test_what_is_said(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "a.yaml").write_text(POLICY)
    found = put(
        tmp_path, f"policies_dir: p\npolicies: {{b: {{{POLICY}}}}}\nactive: b\nexperiment: {{arms: {{a: 100}}}}\n"
    )
    assert found.settings.active == "b"
    assert found.settings.experiment is not None
    assert set(found.settings.policies) == {"a", "b"}
    assert found.folder == tmp_path / "p"


def test_only_what_does_not_take_effect_live_needs_a_restart(tmp_path: Path) -> None:
    before = put(tmp_path, f"policies: {{a: {{{POLICY}}}}}\nactive: a\n")
    live = put(tmp_path, f"policies: {{b: {{{POLICY}}}}}\nactive: b\nexperiment: {{arms: {{b: 100}}}}\n")
    assert find_restart_keys(before, live) == []
    assert live.folder is None
    other = put(
        tmp_path,
        f"policies: {{b: {{{POLICY}}}}}\nactive: b\nlisten: {{port: 1}}\nlimits: {{grace_s: 1}}\npool: "
        "{masters: ['http://127.0.0.1:2']}\nseed: 4\n",
    )
    assert find_restart_keys(before, other) == ["listen.port", "limits.grace_s", "pool", "seed"]
    assert find_restart_keys(other, other) == []


def test_broken_files_are_refused_as_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"main\.yaml:2: active: unknown policy"):
        put(tmp_path, "active: nobody\n")
