"""The troubles that come with the project: right by both schemas, and one of them shows all that there is."""

from __future__ import annotations

import json

import pytest

from router.config.lookup import list_files
from router.config.reader import read_trouble_file
from router.config.sections.simulation import TroubleFile
from router.config.yaml_source import load as document
from router.lab.sweep import options
from router.lab.sweep.options import check_possible, load_troubles
from tests.paths import CONFIGS, ROOT
from tests.suites.json_schema import violations

TROUBLES = list_files(options.TROUBLES)


def test_there_are_those_that_are_promised() -> None:
    assert set(TROUBLES) == {"bad-day", "dies", "late", "lossy", "slow"}


@pytest.mark.parametrize("name", TROUBLES)
def test_each_is_what_its_schema_says_and_a_fleet_of_eight_can_suffer_it(name: str) -> None:
    schema = json.loads((CONFIGS / "trouble.schema.json").read_text(encoding="utf-8"))
    data = document(TROUBLES[name]).data
    assert violations(data, schema) == []
    assert any("at_s" in one for one in violations(data | {"pool_away": [{"at_s": 1}]}, schema))
    check_possible(name, load_troubles(name)[name], instances=8, prefills=0, pooled=True)


def test_the_one_to_copy_from_has_every_key() -> None:
    whole = read_trouble_file(TROUBLES["bad-day"])
    assert whole.model_fields_set == set(TroubleFile.model_fields)


def test_the_page_has_every_key() -> None:
    page = (ROOT / "docs/plan/simulate.md").read_text(encoding="utf-8")
    _, _, section = page.partition("### Faults")
    told = section.partition("\n## ")[0]
    assert [name for name in TroubleFile.model_fields if f"`{name}`" not in told] == []
