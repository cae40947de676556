"""A game day's file: faults in order, with the parameters that they have, within the fleet that there is."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from router.config.reader import read_any, read_gameday_file
from router.config.sections.gameday import TRAITS, FaultKind, GamedayFile
from router.errors import ConfigError

DAY = "about: x\ncalm_from_s: 5\nends_s: 60\nfleet: {engines: 2}\nfaults:\n"


def read(folder: Path, *faults: str, head: str = DAY) -> GamedayFile:
    file = folder / "day.yaml"
    file.write_text(head + "".join(f"  - {{{fault}}}\n" for fault in faults), encoding="utf-8")
    assert read_any(file) == read_gameday_file(file)
    return read_gameday_file(file)


def test_every_fault_has_its_traits() -> None:
    assert set(TRAITS) == set(get_args(FaultKind))


def test_one_of_each(tmp_path: Path) -> None:
    day = read(tmp_path, "fault: kill, at_s: 10, engine: 1", "fault: slow, at_s: 20, until_s: 30, factor: 3")
    assert [fault.end_s for fault in day.faults] == [10, 30]
    assert day.faults[1].engine is None


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("fault: kill, at_s: 10, until_s: 12", "over at once"),
        ("fault: kill, at_s: 10, factor: 3", "kill has no factor"),
        ("fault: slow, at_s: 10", "slow lasts"),
        ("fault: slow, at_s: 10, until_s: 10", "not after"),
        ("fault: slow, at_s: 10, until_s: 70", "ends_s"),
        ("fault: slow, at_s: 4, until_s: 8", "calm_from_s"),
        ("fault: kill, at_s: 10, engine: 2", "no engine 2"),
        ("fault: dead_pool, at_s: 10, until_s: 12", "pool: true"),
        ("fault: bad_policy, at_s: 10, until_s: 12", "policy"),
        ("fault: kill_router, at_s: 10, until_s: 12, router: 1", "no router 1 of 1"),
        ("fault: kill_worker, at_s: 10", "workers: 2"),
        ("fault: earthquake, at_s: 10", "kill"),
    ],
)
def test_what_cannot_be_played_is_refused(tmp_path: Path, fault: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read(tmp_path, fault)


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("fault: kill_worker, at_s: 10, worker: 2", "no worker 2 of 2"),
        ("fault: clock_jump, at_s: 10, until_s: 12", "without workers"),
    ],
)
def test_what_workers_cannot_have_is_refused(tmp_path: Path, fault: str, why: str) -> None:
    head = DAY.replace("faults:", "router: {workers: 2}\nfaults:")
    with pytest.raises(ConfigError, match=why):
        read(tmp_path, fault, head=head)
    assert read(tmp_path, "fault: kill_worker, at_s: 10, worker: 1", head=head).workers == 2


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("", "one of faults and draw"),
        ("draw: {from_s: 10}\nfaults: [{fault: kill, at_s: 10}]\n", "one of faults and draw"),
        ("draw: {from_s: 5}\n", "between calm_from_s and ends_s"),
        ("draw: {from_s: 60}\n", "between calm_from_s and ends_s"),
        ("draw: {from_s: 10, every_s: 8, lasts_s: 8}\n", "not below every_s"),
    ],
)
def test_faults_are_listed_or_drawn(tmp_path: Path, lines: str, why: str) -> None:
    head = DAY.removesuffix("faults:\n")
    with pytest.raises(ConfigError, match=why):
        read(tmp_path, head=head + lines)
    assert read(tmp_path, head=head + "draw: {from_s: 10}\n").faults == []


def test_faults_do_not_overlap(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="before slow is over"):
        read(tmp_path, "fault: slow, at_s: 10, until_s: 20", "fault: kill, at_s: 20")
