"""What options name: one of a folder's YAML files by its stem, or a file from anywhere else by its path.

So `--policy warm` and `--policy mine/new.yaml` are the same kind of answer, as are profiles and troubles. What stands
in a file is read in `read.py`; which folder is meant is the command's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from router.config.reader import POLICY_SUFFIXES
from router.config.validation_errors import describe_unknown
from router.errors import ConfigError

T = TypeVar("T")

SHIPPED = Path(__file__).parents[2] / "configs"
"""The folders that come with the project; an installed package is without them."""


def list_files(folder: Path) -> dict[str, Path]:
    """The file of each name there is, in the order of the names. Raises ConfigError where there is no such folder."""
    if not folder.is_dir():
        raise ConfigError(f"no such folder: {folder}; give files (.yaml) instead of names")
    return {file.stem: file for file in sorted(folder.iterdir()) if file.suffix in POLICY_SUFFIXES}


def resolve_file(kind: str, given: str, folder: Path) -> Path:
    """What `--kind given` means. Raises ConfigError, which says what is there; a file need not exist."""
    if Path(given).suffix in POLICY_SUFFIXES:
        return Path(given)
    known = list_files(folder)
    if given not in known:
        hint = describe_unknown(kind, given, known)
        raise ConfigError(f"--{kind}: {hint} (in {folder.absolute()}); or give a file (.yaml)")
    return known[given]


def load_each(kind: str, given: Iterable[str], folder: Path, made: Callable[[Path], T]) -> dict[str, T]:
    """What is `made` of each file that `--kind` means, by name, in the order given.

    Raises ConfigError with every problem, one a line; those that `made` raises among them.
    """
    problems: list[str] = []
    found: dict[str, T] = {}
    for one in given:
        try:
            file = resolve_file(kind, one, folder)
            if file.stem in found:
                raise ConfigError(f'--{kind}: "{file.stem}" is given twice; rename one of the files')
            found[file.stem] = made(file)
        except ConfigError as refusal:
            problems.append(str(refusal))
    if problems:
        raise ConfigError("\n".join(problems))
    return found
