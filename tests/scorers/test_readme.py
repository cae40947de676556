"""The tables of scorers/README.md and its example must stay true."""

import re
from pathlib import Path
from typing import Any

import pytest

import scorers
from scorers.contract import Needs, Plugin, Scorer
from scorers.parameters import parameters
from scorers.registry import BUILTINS, GROUPS
from tests.suites.scorers import check_scorer
from tests.suites.views import a_row, a_view, an_overlap

README = (Path(scorers.__file__).parent / "README.md").read_text()


def spelled(needs: Needs) -> str:
    return ", ".join(str(one.name).lower() for one in needs) or "-"


def as_yaml(default: object) -> object:
    return "null" if default is None else str(default).lower() if isinstance(default, bool) else default


@pytest.mark.parametrize(("name", "plugin"), [one for kind in BUILTINS.values() for one in kind.items()])
def test_every_built_in_has_its_row(name: str, plugin: type[Plugin]) -> None:
    params = ", ".join(f"`{p.name}: {as_yaml(p.default)}`" for p in parameters(plugin).values()) or "-"
    cells = [f"`{name}`", spelled(plugin.needs), params, str(plugin.__doc__).partition("\n")[0]]
    if issubclass(plugin, Scorer):
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
