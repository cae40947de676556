"""The game days that come with the project: right by both schemas, and together they play all that there is."""

from __future__ import annotations

import json
from typing import get_args

import pytest

from router.config.lookup import list_files
from router.config.reader import read_gameday_file
from router.config.sections.gameday import TRAITS, FaultKind, GamedayBounds
from router.config.yaml_source import load as document
from router.lab.gameday.draw import draw_faults
from tests.paths import CONFIGS, ROOT
from tests.suites.json_schema import violations

DAYS = list_files(CONFIGS / "gamedays")
PAGE = (ROOT / "docs/operate/game-days.md").read_text(encoding="utf-8")


def test_there_are_those_that_are_promised() -> None:
    assert set(DAYS) == {"full", "short", "kills", "stuck", "soak", "soak-short"}


@pytest.mark.parametrize("name", DAYS)
def test_each_is_what_its_schema_says_and_asks_something_of_every_fault(name: str) -> None:
    schema = json.loads((CONFIGS / "gameday.schema.json").read_text(encoding="utf-8"))
    data = document(DAYS[name]).data
    assert violations(data, schema) == []
    assert violations(data | {"faults": [{"fault": "kill", "at": 1}]}, schema) != []
    day = read_gameday_file(DAYS[name])
    assert all(fault.must.failed is not None for fault in draw_faults(day).faults)


def test_the_full_one_plays_every_fault_that_one_router_can_have() -> None:
    several = {"kill_worker", "kill_router"}
    assert {fault.fault for fault in read_gameday_file(DAYS["full"]).faults} == set(get_args(FaultKind)) - several


@pytest.mark.parametrize("name", ["soak", "soak-short"])
def test_a_soak_plays_every_fault_and_examines_its_end(name: str) -> None:
    day = draw_faults(read_gameday_file(DAYS[name]))
    assert {fault.fault for fault in day.faults} == set(get_args(FaultKind))
    assert day.at_end is not None


def test_the_short_soak_differs_from_the_long_one_in_its_length_alone() -> None:
    long, short = (document(DAYS[name]).data for name in ("soak", "soak-short"))
    differing = {"about", "ends_s", "at_end"}
    assert {key for key in long if long[key] != short[key]} == differing
    assert long.keys() == short.keys()


def test_the_page_has_every_fault_with_its_parameters_and_every_bound() -> None:
    for fault, traits in TRAITS.items():
        (row,) = (line for line in PAGE.splitlines() if line.startswith(f"| `{fault}` |"))
        assert all(f"`{name}`" in row for name in traits.parameters), fault
    assert [name for name in GamedayBounds.model_fields if f"`{name}`" not in PAGE] == []
