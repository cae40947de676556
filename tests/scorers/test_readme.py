"""The tables of scorers/README.md and its example must stay true."""

import re
from pathlib import Path
from typing import Any

import pytest

import scorers
from scorers.contract import Needs, Scorer
from scorers.registry import BUILTINS, GROUPS, Description, Registry
from tests.suites.scorers import check_scorer
from tests.suites.views import a_row, a_view, an_overlap

README = (Path(scorers.__file__).parent / "README.md").read_text()
BUILT_IN = Registry({kind: {} for kind in BUILTINS})


def spelled(needs: Needs) -> str:
    return ", ".join(str(one.name).lower() for one in needs) or "-"


def as_yaml(default: object) -> object:
    return "null" if default is None else str(default).lower() if isinstance(default, bool) else default


@pytest.mark.parametrize("plugin", BUILT_IN.describe_all(), ids=lambda plugin: f"{plugin.kind}-{plugin.name}")
def test_every_built_in_has_its_row(plugin: Description) -> None:
    params = ", ".join(f"`{p.name}: {as_yaml(p.default)}`" for p in plugin.parameters) or "-"
    cells = [f"`{plugin.name}`", spelled(plugin.needs), params, plugin.summary]
    if plugin.unit is not None:
        cells.insert(1, plugin.unit.value)
    assert f"| {' | '.join(cells)} |" in README.splitlines()


def test_nothing_else_is_in_the_tables() -> None:
    rows = set(re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE))
    assert rows == {name for kind in BUILTINS.values() for name in kind}


def test_the_entry_point_groups_are_named() -> None:
    assert all(f"`{group}`" in README for group in GROUPS.values())


def test_the_example_works_and_is_short() -> None:
    code = README.split("```python\n")[1].split("```")[0]
    assert code.count("\n") <= 30
    module: dict[str, Any] = {"__name__": "example"}
    exec(code, module)
    scorer: Scorer = module["Crowding"]()
    view = a_view(a_row("a", an_overlap(32)), a_row("b"), a_row("a", rank=1))
    check_scorer(scorer, view, [2, 0, 1])
