"""The policies that `--policy` names, built: files, or policies of a folder by the stem of their file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from router.config.lookup import SHIPPED, load_each
from router.config.reader import read_policy_file
from router.scheduling.policy.policy import Policy, build_policy
from scorers.registry import Registry

FOLDERS = (Path("configs/policies"), Path())
"""Where names are looked up first without `--policies-dir`: a replay is of the user's own decision log, so policies in
the working directory override the shipped ones of the same name."""


def policies(given: Sequence[str], folder: Path | None, registry: Registry) -> list[Policy]:
    """Return the policies in the order given. Raises ConfigError with one line per problem."""

    def read(file: Path) -> Policy:
        return build_policy(file.stem, read_policy_file(file), registry)

    own = folder or next(path for path in FOLDERS if path.is_dir())
    return list(load_each("policy", given, read, *([own] if folder else [own, SHIPPED / "policies"])).values())
