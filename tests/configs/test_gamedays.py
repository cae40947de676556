"""The game days that come with the project: right by both schemas, and together they play all that there is."""

from __future__ import annotations

import json
from typing import get_args

import pytest

from router.config.lookup import list_files
from router.config.reader import read_gameday_file
from router.config.sections.gameday import TRAITS, FaultKind, GamedayBounds
from router.config.yaml_source import load as document
from tests.paths import CONFIGS, ROOT
from tests.suites.json_schema import violations

DAYS = list_files(CONFIGS / "gamedays")
PAGE = (ROOT / "docs/operate/game-days.md").read_text(encoding="utf-8")


def test_there_are_those_that_are_promised() -> None:
    assert set(DAYS) == {"full", "short", "kills", "stuck"}


@pytest.mark.parametrize("name", DAYS)
def test_each_is_what_its_schema_says_and_asks_something_of_every_fault(name: str) -> None:
    schema = json.loads((CONFIGS / "gameday.schema.json").read_text(encoding="utf-8"))
    data = document(DAYS[name]).data
    assert violations(data, schema) == []
    assert violations(data | {"faults": [{"fault": "kill", "at": 1}]}, schema) != []
    day = read_gameday_file(DAYS[name])
    assert all(fault.must.failed is not None for fault in day.faults)


def test_the_full_one_plays_every_fault() -> None:
    assert {fault.fault for fault in read_gameday_file(DAYS["full"]).faults} == set(get_args(FaultKind))


def test_the_page_has_every_fault_with_its_parameters_and_every_bound() -> None:
    for fault, traits in TRAITS.items():
        (row,) = (line for line in PAGE.splitlines() if line.startswith(f"| `{fault}` |"))
        assert all(f"`{name}`" in row for name in traits.parameters), fault
    assert [name for name in GamedayBounds.model_fields if f"`{name}`" not in PAGE] == []
