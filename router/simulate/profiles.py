"""Profiles by name or file: from `configs/profiles/` to the values that a simulation computes with.

A file says of each number where it comes from; a simulation needs only the numbers.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from router.config.complaints import unknown
from router.config.read import POLICY_SUFFIXES, read_profile_file
from router.errors import ConfigError
from router.sim.profile import Profile

FOLDER = Path(__file__).parents[2] / "configs" / "profiles"


def load(given: str, folder: Path | None = None) -> Profile:
    """The profile of this name in `folder` (None: those that come with the project), or of this YAML file.

    Raises `ConfigError`, which names the file and the line, or the nearest profile that there is.
    """
    file = Path(given)
    if file.suffix not in POLICY_SUFFIXES:
        known = names(folder)
        if given not in known:
            raise ConfigError(f"{unknown('profile', given, known)}; or give a file (.yaml)")
        file = known[given]
    read = read_profile_file(file)
    numbers = {field.name: getattr(read, field.name).value for field in fields(Profile) if field.name != "name"}
    return Profile(name=file.stem, **numbers)


def names(folder: Path | None = None) -> dict[str, Path]:
    """The file of each profile there is, in the order of their names."""
    files = sorted(file for file in (folder or FOLDER).glob("*") if file.suffix in POLICY_SUFFIXES)
    return {file.stem: file for file in files}
