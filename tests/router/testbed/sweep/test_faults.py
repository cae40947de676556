"""Troubles by name or by file, and which fleets they can befall."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest

from router.errors import ConfigError
from router.testbed.simulator.scenario import InstanceFailure, Trouble
from router.testbed.sweep.faults import check_possible, load_troubles

WHOLE = """
down: [{instance: 3, from_s: 300, until_s: 420}]
slow: [{instance: 1}, {instance: 2, factor: 4, from_s: 120}]
events_lost: 0.05
pool_away: [{from_s: 200, until_s: 260}, {from_s: 500}]
router_starts_s: 60
"""


def put(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_a_file_becomes_what_a_simulation_suffers(tmp_path: Path) -> None:
    assert load_troubles(put(tmp_path, "mine.yaml", WHOLE)) == {
        "mine": Trouble(
            failures=(
                InstanceFailure("down", 3, 300.0, 420.0),
                InstanceFailure("slow", 1, 0.0, inf, factor=2.0),
                InstanceFailure("slow", 2, 120.0, inf, factor=4.0),
            ),
            events_lost=0.05,
            pool_away=((200.0, 260.0), (500.0, inf)),
            router_starts_s=60.0,
        )
    }


def test_several_in_their_order_and_first_of_all_none(tmp_path: Path) -> None:
    found = load_troubles(f"slow,off,{put(tmp_path, 'mine.yaml', WHOLE)}")
    assert list(found) == ["off", "slow", "mine"]
    assert found["off"] == Trouble()


def test_names_are_those_of_a_folder(tmp_path: Path) -> None:
    put(tmp_path, "mine.yaml", "events_lost: 0.5")
    assert load_troubles("mine", tmp_path) == {"mine": Trouble(events_lost=0.5)}
    with pytest.raises(ConfigError, match='--trouble: unknown trouble "slow": known here: mine'):
        load_troubles("slow", tmp_path)


def test_everything_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        load_troubles(f"slow,diez,{put(tmp_path, 'slow.yaml', WHOLE)},{put(tmp_path, 'bad.yaml', 'dwon: []')}")
    unknown, twice, misspelt = str(refused.value).splitlines()
    assert unknown.startswith('--trouble: unknown trouble "diez": did you mean "dies"?')
    assert twice.startswith('--trouble: "slow" is given twice')
    assert misspelt == f'{tmp_path / "bad.yaml"}:1: dwon: unknown key "dwon": did you mean "down"?'


def test_a_file_called_off_would_be_taken_for_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='--trouble: "off" means that nothing goes wrong; rename the file'):
        load_troubles(put(tmp_path, "off.yaml", WHOLE))


def down(*numbers: int, until_s: float = inf) -> Trouble:
    return Trouble(failures=tuple(InstanceFailure("down", number, 10.0, until_s) for number in numbers))


def possible(trouble: Trouble, *, prefills: int = 0, pooled: bool = False) -> None:
    check_possible("mine", trouble, instances=4, prefills=prefills, pooled=pooled)


@pytest.mark.parametrize(
    ("trouble", "prefills", "said"),
    [
        (down(4), 0, "mine: there is no instance 4 among 4, which have numbers from 0 to 3"),
        (Trouble(pool_away=((1.0, 2.0),)), 0, "mine: the pool is away, but there is none; give one with --pool"),
        (down(0, 1, 2, 3), 0, "mine: instances 0 to 3 die for good and nobody is left to answer"),
        (down(2, 3), 2, "mine: instances 2 to 3 die for good"),
    ],
)
def test_what_a_fleet_cannot_suffer_is_refused(trouble: Trouble, prefills: int, said: str) -> None:
    with pytest.raises(ConfigError, match=f"--trouble: {said}"):
        possible(trouble, prefills=prefills)


def test_what_it_can_is_not() -> None:
    possible(down(0, 1, 2))
    possible(down(0, 1, 2, 3, until_s=20.0))  # all of them, but they come back
    possible(down(0, 1), prefills=2)
    possible(Trouble(pool_away=((1.0, 2.0),)), pooled=True)
