"""What MkDocs calls before it builds the site: a page that the code has left behind stops the build."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from mkdocs.exceptions import PluginError

from docs.tools import examples, generate
from docs.tools.pages import all_blocks


def on_pre_build(config: Any) -> None:
    """Fail on stale generated files and on examples that do not check."""
    found = [f"{file}: not current, run `make reference`" for file in generate.stale()]
    found += examples.problems(all_blocks())
    if found:
        raise PluginError("\n".join(["the documentation is wrong:", *found]))
