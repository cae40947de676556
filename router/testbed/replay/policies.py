"""The policies that `--policy` names, built: files, or policies of a folder by the stem of their file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from router.config.lookup import load_each
from router.config.reader import read_policy_file
from router.scheduling.policy.policy import Policy, build_policy
from scorers.registry import Registry

FOLDERS = (Path("configs/policies"), Path())
"""Where names are looked up when no folder is given: the first that is there. A replay is of somebody's own decision
log, so the policies are those where he stands; a simulation means those that come with the project."""


def policies(given: Sequence[str], folder: Path | None, registry: Registry) -> list[Policy]:
    """In the order given. Raises ConfigError with every problem found, one a line."""
    where = folder or next(path for path in FOLDERS if path.is_dir())
    return list(
        load_each(
            "policy", given, where, lambda file: build_policy(file.stem, read_policy_file(file), registry)
        ).values()
    )
