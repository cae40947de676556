"""The policies that `--policy` names, as a simulation takes them: files, or those of a folder by their stem.

Each is built once here, before anything runs, so that a scorer's wrong parameter costs a second and not an hour.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from router.config.complaints import unknown
from router.config.read import POLICY_SUFFIXES, read_policy_file
from router.config.schema import Policy
from router.decide.policy import build_policies
from router.errors import ConfigError

FOLDER = Path(__file__).parents[2] / "configs" / "policies"
ALL = "all"


def load(given: Sequence[str], folder: Path | None = None) -> dict[str, Policy]:
    """By name, in the order given, several with commas; `all`: those of the folder.

    `folder`: where names are looked up; None: the one that comes with the project. Raises ConfigError with every
    problem, one a line.
    """
    known = names(folder or FOLDER)
    wanted = [part for text in given for part in text.split(",")]
    problems: list[str] = []
    found: dict[str, Policy] = {}
    for one in known if ALL in wanted else wanted:
        try:
            file = _file(one, known)
            if file.stem in found:
                raise ConfigError(f'--policy: "{file.stem}" is given twice; rename one of the files')
            found[file.stem] = read_policy_file(file)
        except ConfigError as refusal:
            problems.append(str(refusal))
    if problems:
        raise ConfigError("\n".join(problems))
    build_policies(found)
    return found


def names(folder: Path) -> dict[str, Path]:
    """The file of each policy in `folder`, in the order of their names. Raises ConfigError where it is none."""
    if not folder.is_dir():
        raise ConfigError(f"--policies-dir: no such folder: {folder}; give policies as files (.yaml)")
    return {file.stem: file for file in sorted(folder.iterdir()) if file.suffix in POLICY_SUFFIXES}


def _file(given: str, known: dict[str, Path]) -> Path:
    if Path(given).suffix in POLICY_SUFFIXES:
        return Path(given)
    if given not in known:
        raise ConfigError(f"--policy: {unknown('policy', given, known)}; or give a file (.yaml)")
    return known[given]
