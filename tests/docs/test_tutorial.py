"""The scorer of the tutorial works as it is printed; `tests/scorers/test_outside_package.py` installs it."""

from __future__ import annotations

from typing import Any

from docs.tools.pages import DOCS, read_blocks
from scorers.contract import Scorer
from scorers.registry import GROUPS
from tests.suites.scorers import check_scorer
from tests.suites.views import a_row, a_view, an_overlap

PAGE = DOCS / "policies/write-a-scorer.md"


def test_the_entry_point_groups_are_named() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"`{group}`" in text for group in GROUPS.values())


def test_the_example_works_and_is_short() -> None:
    (code,) = [block.text for block in read_blocks(PAGE) if block.language == "python"]
    assert code.count("\n") <= 30
    module: dict[str, Any] = {"__name__": "example"}
    exec(compile(code, "tutorial", "exec", dont_inherit=True), module)
    scorer: Scorer = module["Crowding"]()
    view = a_view(a_row("a", an_overlap(32)), a_row("b"), a_row("a", rank=1))
    check_scorer(scorer, view, [2, 0, 1])
