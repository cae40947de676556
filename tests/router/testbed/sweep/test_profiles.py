"""Profiles by name or by file."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from router.config.sections.engine_profile import ProfileFile
from router.errors import ConfigError
from router.testbed.engine_profile import EngineProfile
from router.testbed.sweep.profiles import FOLDER, load


def test_a_file_has_what_a_simulation_needs_and_nothing_else() -> None:
    assert {field.name for field in fields(EngineProfile)} - {"name"} == set(ProfileFile.model_fields) - {"about"}


def test_a_name_is_one_of_those_that_come_with_the_project() -> None:
    assert load("plain") == EngineProfile(
        name="plain",
        kv_tokens=1_000_000,
        kv_bytes_per_token=131_072,
        us_per_token=62.5,
        ns_per_pair=0,
        us_per_decode=0,
        weights_ms=10,
        ns_per_context_token=0,
        step_ms=0,
        batched_tokens=8192,
        max_seqs=256,
    )


def test_a_file_is_taken_from_where_it_lies(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text((FOLDER / "plain.yaml").read_text().replace("value: 62.5", "value: 125"))
    assert load(str(mine)).us_per_token == 125
    assert load(str(mine)).name == "mine"


def test_another_folder_has_other_names(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text((FOLDER / "plain.yaml").read_text())
    assert load("mine", tmp_path).name == "mine"
    with pytest.raises(ConfigError, match=r'unknown profile "plain": known here: mine \(in .*\); or give a file'):
        load("plain", tmp_path)


def test_a_misspelt_name_is_told_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r'unknown profile "lama-3\.1-8b-h100": did you mean "llama-3\.1-8b-h100"'):
        load("lama-3.1-8b-h100")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.yaml: cannot be read: no such file"):
        load(str(tmp_path / "gone.yaml"))
