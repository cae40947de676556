"""The policies that `--policy` names, as a simulation takes them: files, or those of a folder by their stem.

Each is built once here, before anything runs, so that a scorer's wrong parameter costs a second and not an hour.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from router.config.lookup import SHIPPED, list_files, load_each
from router.config.reader import read_policy_file
from router.config.schema import PolicyConfig
from router.scheduling.policy.policy import build_policies

FOLDER = SHIPPED / "policies"
ALL = "all"


def load(given: Sequence[str], folder: Path | None = None) -> dict[str, PolicyConfig]:
    """By name, in the order given, several with commas; `all`: those of the folder.

    `folder`: where names are looked up; None: the one that comes with the project. Raises ConfigError with every
    problem, one a line.
    """
    where = folder or FOLDER
    wanted = [part for text in given for part in text.split(",")]
    found = load_each("policy", list_files(where) if ALL in wanted else wanted, read_policy_file, where)
    build_policies(found)
    return found
