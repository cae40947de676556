"""Policies by name and by file."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.config.lookup import list_files
from router.errors import ConfigError
from router.testbed.sweep.policies import FOLDER, load


def test_names_are_those_of_the_projects_folder() -> None:
    assert list(load(["warm", "random,round_robin"])) == ["warm", "random", "round_robin"]


def test_all_of_them() -> None:
    assert set(load(["all"])) == set(list_files(FOLDER)) >= {"warm", "llmd_weighted"}


def test_a_file_and_a_folder_of_ones_own(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("scorers: [{name: least_requests}]\n")
    assert list(load([str(mine), "warm"])) == ["mine", "warm"]
    assert list(load(["all"], tmp_path)) == ["mine"]


def test_all_problems_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        load(["worm", "warm", "warm", str(tmp_path / "gone.yaml")])
    unknown, twice, gone = str(refused.value).splitlines()
    assert 'unknown policy "worm": did you mean "warm"?' in unknown
    assert '"warm" is given twice' in twice
    assert "gone.yaml" in gone


def test_what_cannot_be_built_is_found_before_anything_runs(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("scorers: [{name: warm, capp: 3}]\n")
    with pytest.raises(ConfigError, match="capp"):
        load([str(wrong)])


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        load(["warm"], tmp_path / "none")
