"""Files by name: the policies, profiles and faults that ship with Warmroute, and those of the user's own folders.

An option such as `--policy` takes a name or a path: `warm` is a file's stem in a folder, `mine/new.yaml` is that
file. Which folder is meant is the command's business, and what the file holds is `reader.py`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from router.config.validation_errors import describe_unknown
from router.errors import ConfigError

T = TypeVar("T")

YAML_SUFFIXES = (".yaml", ".yml")

SHIPPED = Path(__file__).parent / "shipped"
"""The folder `configs/` of the project: a link in a checkout, package data in an installed package."""


def list_files(*folders: Path) -> dict[str, Path]:
    """Return YAML files by stem, sorted; the first folder with a stem wins. Raises ConfigError for a missing
    one.
    """
    found: dict[str, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"no such folder: {folder}; give files (.yaml) instead of names")
        for file in folder.iterdir():
            if file.suffix in YAML_SUFFIXES:
                found.setdefault(file.stem, file)
    return dict(sorted(found.items()))


def list_shipped_policies() -> dict[str, Path]:
    """Return the file of every policy that ships with Warmroute, by name."""
    return list_files(SHIPPED / "policies")


def resolve_file(kind: str, name: str, *folders: Path, option: str | None = None) -> Path:
    """Return the file that `name` means; a path is returned as it is, whether the file exists or not. `option` is what
    messages name; None: `--kind`.

    Raises ConfigError with the nearest or all known names when no folder has a file of that name.
    """
    if Path(name).suffix in YAML_SUFFIXES:
        return Path(name)
    known = list_files(*folders)
    if name not in known:
        where = " and ".join("shipped" if SHIPPED in at.parents else str(at.absolute()) for at in folders)
        raise ConfigError(
            f"{option or f'--{kind}'}: {describe_unknown(kind, name, known)} (in {where}); or give a file (.yaml)"
        )
    return known[name]


def load_each(kind: str, names: Iterable[str], read: Callable[[Path], T], *folders: Path) -> dict[str, T]:
    """Return `read` of each `--kind` name or path by stem, in order. Raises ConfigError with all problems."""
    problems: list[ConfigError] = []
    found: dict[str, T] = {}
    for name in names:
        try:
            file = resolve_file(kind, name, *folders)
            if file.stem in found:
                raise ConfigError(f'--{kind}: "{file.stem}" is given twice; rename one of the files')
            found[file.stem] = read(file)
        except ConfigError as error:
            problems.append(error)
    if problems:
        raise ConfigError(*problems)
    return found
