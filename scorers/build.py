"""Selection of the build that runs: modules compiled by mypyc (setup.py), or their Python source.

Both builds are installed side by side and Python prefers the compiled one. With WARMROUTE_PURE=1 in the environment
the source runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from importlib.util import find_spec
from types import ModuleType

PURE = "WARMROUTE_PURE"
PACKAGES = ("router.", "scorers.")
LIBRARY = "scorers.compiled__mypyc"


class SourceFinder:
    """Finds the source of this project's modules, for `sys.meta_path`."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec of the module's source in one of the folders `path` of its package. None if it has no
        source there.
        """
        if not name.startswith(PACKAGES):
            return None
        finders = (FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES)) for folder in path or ())
        return next((spec for finder in finders if (spec := finder.find_spec(name)) is not None), None)


def prefer_source() -> None:
    """Import the source of modules from now on, if WARMROUTE_PURE=1 is set."""
    if os.environ.get(PURE) == "1" and SourceFinder not in sys.meta_path:
        sys.meta_path.insert(0, SourceFinder)


def is_compiled() -> bool:
    """Return whether this process runs compiled modules."""
    return os.environ.get(PURE) != "1" and find_spec(LIBRARY) is not None
