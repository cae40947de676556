"""A trouble's file: what it may say, and what is told of what it may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.config.reader import read_trouble_file
from router.config.sections.faults import TroubleFile
from router.errors import ConfigError


def read(folder: Path, text: str) -> TroubleFile:
    file = folder / "t.yaml"
    file.write_text(text)
    return read_trouble_file(file)


def refused(folder: Path, text: str) -> str:
    with pytest.raises(ConfigError) as refusal:
        read(folder, text)
    return str(refusal.value).removeprefix(str(folder / "t.yaml"))


def test_one_thing_is_enough_and_the_rest_has_defaults(tmp_path: Path) -> None:
    made = read(tmp_path, "slow: [{instance: 2}]")
    (slow,) = made.slow
    assert (slow.instance, slow.factor, slow.from_s, slow.until_s) == (2, 2.0, 0.0, None)
    assert (made.down, made.events_lost, made.pool_away, made.router_starts_s) == ([], 0.0, [], 0.0)


@pytest.mark.parametrize("text", ["{}", "events_lost: 0", "down: []\nrouter_starts_s: 0"])
def test_nothing_at_all_is_refused(tmp_path: Path, text: str) -> None:
    told = refused(tmp_path, text)
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
        ("slow: [{instance: 1, from_s: 5, until_s: 5}]", ":1: slow[0]: until_s: 5 s is not after from_s, 5 s"),
        ("pool_away: [{from_s: -1}]", ":1: pool_away[0].from_s: found the number -1, wanted at least 0"),
        ("events_lost: 5", ":1: events_lost: found the number 5, wanted at most 1"),
        ("events_lost: 5%", ':1: events_lost: found the text "5%", wanted a number'),
        ("router_start_s: 5", ':1: router_start_s: unknown key "router_start_s": did you mean "router_starts_s"?'),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    assert refused(tmp_path, text).startswith(said)


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
    assert f": {said}: let one end (until_s) before the next begins (from_s)" in refused(tmp_path, text)


def test_several_instances_may_suffer_at_once_and_one_may_again(tmp_path: Path) -> None:
    made = read(tmp_path, "down: [{instance: 1, until_s: 9}, {instance: 1, from_s: 10}, {instance: 2}]")
    assert len(made.down) == 3
