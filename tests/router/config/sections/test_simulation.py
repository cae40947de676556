"""A profile's file: every number has a source, and what is wrong is said with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.config.reader import read_profile_file, read_trouble_file
from router.config.sections.simulation import ProfileFile, TroubleFile
from router.errors import ConfigError

NUMBERS = [name for name in ProfileFile.model_fields if name != "about"]
WHOLE = "about: a model on a GPU\n" + "".join(f"{name}: {{value: 8, source: chosen}}\n" for name in NUMBERS)


def read_profile(folder: Path, text: str) -> ProfileFile:
    file = folder / "p.yaml"
    file.write_text(text)
    return read_profile_file(file)


def refused_profile(folder: Path, text: str) -> str:
    with pytest.raises(ConfigError) as refusal:
        read_profile(folder, text)
    return str(refusal.value)


def test_the_whole_of_it(tmp_path: Path) -> None:
    made = read_profile(tmp_path, WHOLE.replace("us_per_token: {value: 8", "us_per_token: {value: 62.5"))
    assert (made.us_per_token.value, made.us_per_token.source, made.kv_tokens.value) == (62.5, "chosen", 8)


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("given", ["{value: 8}", "{value: 8, source: ''}", "{value: 8, source: ' '}", "8"])
def test_no_number_goes_without_its_source(tmp_path: Path, name: str, given: str) -> None:
    line = WHOLE[: WHOLE.index(f"{name}: ")].count("\n") + 1
    told = refused_profile(tmp_path, WHOLE.replace(f"{name}: {{value: 8, source: chosen}}", f"{name}: {given}"))
    assert told.startswith(f"{tmp_path / 'p.yaml'}:{line}: {name}")
    assert "\n" not in told


@pytest.mark.parametrize("name", [name for name in NUMBERS if name != "tail_tokens"])  # of hybrid models alone
def test_no_number_may_be_left_out(tmp_path: Path, name: str) -> None:
    told = refused_profile(tmp_path, WHOLE.replace(f"{name}: {{value: 8, source: chosen}}\n", ""))
    assert told.startswith(f"{tmp_path / 'p.yaml'}:1: {name}: missing (")


def test_a_misspelt_number_is_named_with_the_nearest(tmp_path: Path) -> None:
    assert 'unknown key "ns_per_pairs": did you mean "ns_per_pair"?' in refused_profile(
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
    told = refused_profile(tmp_path, WHOLE.replace(f"{name}: {{value: 8", f"{name}: {{value: {value}"))
    assert f"{name}.value: found" in told
    assert f"wanted {wanted}" in told


def read_trouble(folder: Path, text: str) -> TroubleFile:
    file = folder / "t.yaml"
    file.write_text(text)
    return read_trouble_file(file)


def refused_trouble(folder: Path, text: str) -> str:
    with pytest.raises(ConfigError) as refusal:
        read_trouble(folder, text)
    return str(refusal.value).removeprefix(str(folder / "t.yaml"))


def test_one_thing_is_enough_and_the_rest_has_defaults(tmp_path: Path) -> None:
    made = read_trouble(tmp_path, "slow: [{instance: 2}]")
    (slow,) = made.slow
    assert (slow.instance, slow.factor, slow.from_s, slow.until_s) == (2, 2.0, 0.0, None)
    assert (made.down, made.events_lost, made.pool_away, made.router_starts_s) == ([], 0.0, [], 0.0)


@pytest.mark.parametrize("text", ["{}", "events_lost: 0", "down: []\nrouter_starts_s: 0"])
def test_nothing_at_all_is_refused(tmp_path: Path, text: str) -> None:
    told = refused_trouble(tmp_path, text)
    assert told == ":1: no fault is given: give at least one of down, slow, events_lost, pool_away, router_starts_s"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("down: [{from_s: 3}]", ":1: down[0].instance: missing (number of the instance; the first is 0)"),
        ("down: [{instance: -1}]", ":1: down[0].instance: found the number -1, wanted at least 0"),
        ("down: [{instance: 1, factor: 2}]", ':1: down[0].factor: unknown key "factor"'),
        (
            "slow:\n- {instance: 1}\n- {instance: 2, factor: 1}",
            ":3: slow[1].factor: found the number 1, wanted more than",
        ),
        (
            "slow: [{instance: 1, from_s: 5, until_s: 5}]",
            ":1: slow[0].until_s: found 5 s, wanted a time after from_s, 5 s",
        ),
        ("pool_away: [{from_s: -1}]", ":1: pool_away[0].from_s: found the number -1, wanted at least 0"),
        ("events_lost: 5", ":1: events_lost: found the number 5, wanted at most 1"),
        ("events_lost: 5%", ':1: events_lost: found the text "5%", wanted a number'),
        ("router_start_s: 5", ':1: router_start_s: unknown key "router_start_s": did you mean "router_starts_s"?'),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    assert refused_trouble(tmp_path, text).startswith(said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "down: [{instance: 1, from_s: 9}]\nslow: [{instance: 1}]",
            "instance 1 has a fault from 0 s to the end and another from 9 s",
        ),
        (
            "down: [{instance: 1, from_s: 20, until_s: 40}, {instance: 1, until_s: 20}]",
            "instance 1 has a fault from 0 s until 20 s and another from 20 s",
        ),
        (
            "pool_away: [{until_s: 9}, {from_s: 5, until_s: 7}]",
            "the pool has a fault from 0 s until 9 s and another from 5 s",
        ),
    ],
)
def test_one_at_a_time_of_each(tmp_path: Path, text: str, said: str) -> None:
    assert f": {said}: let one end (until_s) before the next begins (from_s)" in refused_trouble(tmp_path, text)


def test_several_instances_may_suffer_at_once_and_one_may_again(tmp_path: Path) -> None:
    made = read_trouble(tmp_path, "down: [{instance: 1, until_s: 9}, {instance: 1, from_s: 10}, {instance: 2}]")
    assert len(made.down) == 3
