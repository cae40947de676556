"""Which engines have room: the arithmetic of one target, and what is on its way to others."""

from __future__ import annotations

from math import inf

import pytest

from scorers.admission.contract import FleetMemory, TargetLoad
from scorers.admission.engine_room import REPORT_S, EngineRoom, has_room


def a_load(**changed: object) -> TargetLoad:
    return TargetLoad("a/0", 0, 0.0, 20.0, 0, 1000, 0)._replace(**changed)


@pytest.mark.parametrize(
    ("changed", "room"),
    [
        ({}, True),
        ({"prefilling": 1, "left_ms": 21.0}, False),
        ({"prefilling": 1, "left_ms": 20.0, "waiting": 3}, True),  # it will be done when the next one gets there
        ({"prefilling": 2, "left_ms": 20.0, "waiting": 1}, False),
        ({"prefilling": 9, "left_ms": 20.0}, True),  # short prompts, which it takes up together
        ({"prefilling": 1, "left_ms": 0.0, "waiting": 1}, False),  # it should have begun long ago
        ({"prefilling": 1, "left_ms": 0.0, "waiting": None}, False),
        ({"prefilling": 1, "left_ms": 0.0}, True),
        ({"prefilling": 2, "left_ms": 0.0}, False),  # slower than was learned
        ({"live_tokens": 900}, True),
        ({"live_tokens": 901}, False),
        ({"live_tokens": 901, "capacity_tokens": None}, True),
        ({"others_wait": True}, False),
    ],
)
def test_one_target(changed: dict[str, object], room: bool) -> None:
    assert has_room(a_load(**changed), 100) == room


def test_a_prompt_larger_than_the_memory_begins_on_an_empty_engine() -> None:
    assert has_room(a_load(), 5000)


def test_what_is_on_its_way_takes_a_room_each() -> None:
    room, two = EngineRoom(), [a_load(), a_load(target="b/0")]
    assert room.find(100, FleetMemory(loads=two, unplaced=1), 0.0)
    assert not room.find(100, FleetMemory(loads=two, unplaced=2), 0.0)


def test_when_to_look_again() -> None:
    """50 ms are left, and 20 of them are how long the next prompt takes to get there."""
    room = EngineRoom()
    busy = a_load(prefilling=1, left_ms=50.0)
    assert not room.find(100, FleetMemory(loads=[busy]), 1.0)
    assert room.due_s == pytest.approx(1.03)
    assert not room.find(100, FleetMemory(loads=[a_load(others_wait=True)]), 1.0)
    assert room.due_s == 1.0 + REPORT_S
    assert room.find(100, FleetMemory(loads=[a_load()]), 1.0)
    assert room.due_s == inf


def test_a_fleet_without_targets_holds_nobody() -> None:
    assert EngineRoom().find(100, FleetMemory(), 0.0)
    assert EngineRoom().list_targets(FleetMemory(), 0.0) is None
