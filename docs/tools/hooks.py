"""MkDocs hook: stop the build when a generated file is out of date or an example in a page is wrong."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from mkdocs.exceptions import PluginError

from docs.tools import examples, generate
from docs.tools.pages import read_all_blocks


def on_pre_build(config: Any) -> None:
    """Check generated files and examples. Raises `PluginError` with one line per problem."""
    found = [f"{file}: not current, run `make reference`" for file in generate.list_stale()]
    found += examples.problems(read_all_blocks())
    if found:
        raise PluginError("\n".join(["the documentation is wrong:", *found]))
