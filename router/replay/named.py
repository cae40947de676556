"""The policies that `--policy` names: files, or policies of a folder by the stem of their file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from router.config.complaints import unknown
from router.config.read import POLICY_SUFFIXES, read_policy_file
from router.decide.policy import Policy, build_policy
from router.errors import ConfigError
from scorers.registry import Registry

FOLDERS = (Path("configs/policies"), Path())
"""Where names are looked up when no folder is given: the first that is there."""


def policies(given: Sequence[str], folder: Path | None, registry: Registry) -> list[Policy]:
    """In the order given. Raises ConfigError with every problem found, one a line."""
    problems: list[str] = []
    found: dict[str, Policy] = {}
    for one in given:
        try:
            file = _file(one, folder)
            if file.stem in found:
                raise ConfigError(f'--policy: "{file.stem}" is given twice; rename one of the files')
            found[file.stem] = build_policy(file.stem, read_policy_file(file), registry)
        except ConfigError as refusal:
            problems.append(str(refusal))
    if problems:
        raise ConfigError("\n".join(problems))
    return list(found.values())


def _file(given: str, folder: Path | None) -> Path:
    if Path(given).suffix in POLICY_SUFFIXES:
        return Path(given)
    where = folder or next(path for path in FOLDERS if path.is_dir())
    if not where.is_dir():
        raise ConfigError(f"--policies-dir: no such folder: {where}")
    known = {file.stem: file for file in sorted(where.iterdir()) if file.suffix in POLICY_SUFFIXES}
    if given not in known:
        raise ConfigError(
            f"--policy: {unknown('policy', given, known)} (in {where.absolute()}); or give a file (.yaml)"
        )
    return known[given]
