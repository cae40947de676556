"""A profile's file: every number has a source, and what is wrong is said with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.config.reader import read_profile_file
from router.config.sections.engine_profile import ProfileFile
from router.errors import ConfigError

NUMBERS = [name for name in ProfileFile.model_fields if name != "about"]
WHOLE = "about: a model on a GPU\n" + "".join(f"{name}: {{value: 8, source: chosen}}\n" for name in NUMBERS)


def read(folder: Path, text: str) -> ProfileFile:
    file = folder / "p.yaml"
    file.write_text(text)
    return read_profile_file(file)


def refused(folder: Path, text: str) -> str:
    with pytest.raises(ConfigError) as refusal:
        read(folder, text)
    return str(refusal.value)


def test_the_whole_of_it(tmp_path: Path) -> None:
    made = read(tmp_path, WHOLE.replace("us_per_token: {value: 8", "us_per_token: {value: 62.5"))
    assert (made.us_per_token.value, made.us_per_token.source, made.kv_tokens.value) == (62.5, "chosen", 8)


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("given", ["{value: 8}", "{value: 8, source: ''}", "{value: 8, source: ' '}", "8"])
def test_no_number_goes_without_its_source(tmp_path: Path, name: str, given: str) -> None:
    line = WHOLE[: WHOLE.index(f"{name}: ")].count("\n") + 1
    told = refused(tmp_path, WHOLE.replace(f"{name}: {{value: 8, source: chosen}}", f"{name}: {given}"))
    assert told.startswith(f"{tmp_path / 'p.yaml'}:{line}: {name}")
    assert "\n" not in told


@pytest.mark.parametrize("name", NUMBERS)
def test_no_number_may_be_left_out(tmp_path: Path, name: str) -> None:
    told = refused(tmp_path, WHOLE.replace(f"{name}: {{value: 8, source: chosen}}\n", ""))
    assert told.startswith(f"{tmp_path / 'p.yaml'}:1: {name}: missing (")


def test_a_misspelt_number_is_named_with_the_nearest(tmp_path: Path) -> None:
    assert 'unknown key "ns_per_pairs": did you mean "ns_per_pair"?' in refused(
        tmp_path, f"{WHOLE}ns_per_pairs: {{value: 1, source: chosen}}\n"
    )


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("kv_tokens", "0", "more than 0"),
        ("kv_tokens", "1.5", "a whole number"),
        ("max_seqs", "-1", "more than 0"),
        ("kv_bytes_per_token", "0", "more than 0"),
        ("us_per_token", "-0.1", "at least 0"),
        ("step_ms", "fast", "a number"),
        ("weights_ms", "null", "a number"),
    ],
)
def test_impossible_numbers_are_refused(tmp_path: Path, name: str, value: str, wanted: str) -> None:
    told = refused(tmp_path, WHOLE.replace(f"{name}: {{value: 8", f"{name}: {{value: {value}"))
    assert f"{name}.value: found" in told
    assert f"wanted {wanted}" in told
