"""The faults that a seed draws: always the same, of every kind that the fleet can have, and valid by themselves."""

from __future__ import annotations

from collections import Counter
from typing import Any, get_args

import pytest

from router.config.sections.gameday import FaultKind, GamedayFile
from router.lab.gameday.draw import draw_faults

KINDS = set(get_args(FaultKind))
ROUND_S = 20.0 * len(KINDS)


def drawn(**fields: Any) -> GamedayFile:
    day = {"about": "x", "ends_s": 30.0 + 2 * ROUND_S, "draw": {"from_s": 30, "every_s": 20, "lasts_s": 8}}
    fleet = {"engines": 3, "pool": True, "routers": 3}
    return draw_faults(GamedayFile.model_validate(day | {"fleet": fleet, "router": {"workers": 2}} | fields))


@pytest.mark.parametrize("seed", range(5))
def test_every_kind_comes_once_in_each_round(seed: int) -> None:
    kinds = [fault.fault for fault in drawn(seed=seed).faults]
    assert [set(kinds[: len(KINDS)]), set(kinds[len(KINDS) :])] == [KINDS, KINDS]
    assert len(kinds) == 2 * len(KINDS)


def test_the_seed_alone_decides() -> None:
    assert drawn(seed=3).faults == drawn(seed=3).faults
    assert drawn(seed=3).faults != drawn(seed=4).faults


@pytest.mark.parametrize("seed", range(5))
def test_the_result_is_a_day_as_it_could_be_written(seed: int) -> None:
    day = drawn(seed=seed, draw={"from_s": 30, "must": {"failed": 3}})
    again = GamedayFile.model_validate(day.model_dump(mode="json", exclude_unset=True))
    assert (again.faults, again.draw) == (day.faults, None)
    assert draw_faults(again) == again
    assert all(fault.must.failed == 3 for fault in again.faults)


def test_one_router_is_never_killed() -> None:
    kinds = [fault for seed in range(20) for fault in drawn(seed=seed).faults if fault.router is not None]
    assert {fault.router for fault in kinds} == {1, 2}
    assert {fault.worker for fault in kinds if fault.fault == "kill_worker"} == {0, 1}


@pytest.mark.parametrize(
    ("fields", "missing"),
    [
        ({"fleet": {"engines": 3, "routers": 3}}, {"dead_pool"}),
        ({"fleet": {"engines": 3, "pool": True}}, {"kill_worker", "kill_router"}),
        ({"router": {}}, {"kill_worker"}),
    ],
)
def test_what_the_fleet_cannot_have_is_not_drawn(fields: dict[str, Any], missing: set[str]) -> None:
    found = Counter(fault.fault for fault in drawn(**fields).faults)
    assert KINDS - set(found) == missing
    assert max(found.values()) - min(found.values()) <= 1


def test_workers_keep_the_time_of_the_system() -> None:
    assert {f.of for s in range(20) for f in drawn(seed=s).faults if f.fault == "clock_jump"} == {"engines"}
    alone = [f.of for s in range(20) for f in drawn(seed=s, router={}).faults if f.fault == "clock_jump"]
    assert set(alone) == {"router", "engines"}
