"""A folder's files by name, and files by path."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.config.lookup import SHIPPED, list_files, list_shipped_policies, load_each, resolve_file
from router.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("two.yml", "one.yaml", "README.md"):
        (tmp_path / name).write_text(name)
    return tmp_path


def test_names_are_the_stems_of_yaml_files_in_their_order(folder: Path) -> None:
    assert list_files(folder) == {"one": folder / "one.yaml", "two": folder / "two.yml"}
    assert list(list_files(folder)) == ["one", "two"]


def test_what_ends_like_a_file_is_one_whether_it_is_there_or_not(folder: Path) -> None:
    assert resolve_file("thing", "one", folder) == folder / "one.yaml"
    assert resolve_file("thing", "gone/one.yaml", folder / "gone") == Path("gone/one.yaml")


def test_a_misspelt_name_is_told_the_nearest_and_where_it_was_looked_for(folder: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        resolve_file("thing", "ome", folder)
    assert str(refused.value) == (
        f'--thing: unknown thing "ome": did you mean "one"? (in {folder}); or give a file (.yaml)'
    )


def test_names_need_a_folder_and_files_do_not(folder: Path) -> None:
    assert list(load_each("thing", ["a/b.yaml"], str, folder / "gone")) == ["b"]
    with pytest.raises(ConfigError, match=r"no such folder: .*gone; give files"):
        load_each("thing", ["one"], str, folder / "gone")


def test_everything_is_made_in_the_order_given_and_every_problem_is_told(folder: Path) -> None:
    assert load_each("thing", ["two", "one"], Path.read_text, folder) == {"two": "two.yml", "one": "one.yaml"}

    def refused(file: Path) -> str:
        raise ConfigError(f"{file.name}: no good")

    with pytest.raises(ConfigError) as told:
        load_each("thing", ["one", "three", "two"], refused, folder)
    first, second, third = str(told.value).splitlines()
    assert (first, third) == ("one.yaml: no good", "two.yml: no good")
    assert second.startswith('--thing: unknown thing "three"')


def test_two_files_of_one_name_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match='"one" is given twice; rename one of the files'):
        load_each("thing", ["one", "elsewhere/one.yaml"], str, folder)


def test_the_first_of_several_folders_wins(folder: Path) -> None:
    mine = folder / "mine"
    mine.mkdir()
    (mine / "one.yml").write_text("mine")
    assert list_files(mine, folder) == {"one": mine / "one.yml", "two": folder / "two.yml"}
    assert resolve_file("thing", "two", mine, folder) == folder / "two.yml"


def test_what_ships_is_found_and_the_message_lists_it() -> None:
    assert "warm" in list_shipped_policies()
    assert "plain" in list_files(SHIPPED / "profiles")
    assert (SHIPPED / "experiments/planted.yaml").is_file()
    assert (SHIPPED / "policy.schema.json").is_file()
    with pytest.raises(ConfigError, match=r"known here: .*\bwarm \(in shipped\)"):
        resolve_file("policy", "xyz", SHIPPED / "policies")
