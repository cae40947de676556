"""The module map in router/README.md has a row for every file, and no row for one that is gone."""

from __future__ import annotations

import re

from tests.paths import ROOT

ROUTER = ROOT / "router"


def test_the_map_is_complete() -> None:
    files = {str(path.relative_to(ROUTER)) for path in ROUTER.rglob("*.py") if path.read_text().strip()}
    rows = set(re.findall(r"^\| \[`([\w/.]+)`\]", (ROUTER / "README.md").read_text(), flags=re.MULTILINE))
    assert files - rows - {"__init__.py"} == set()
    assert rows - files == set()
