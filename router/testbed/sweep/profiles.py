"""Profiles by name or file: from `configs/profiles/` to the values that a simulation computes with.

A file says of each number where it comes from; a simulation needs only the numbers.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from router.config.lookup import SHIPPED, resolve_file
from router.config.reader import read_profile_file
from router.testbed.engine_profile import EngineProfile

FOLDER = SHIPPED / "profiles"


def load(given: str, folder: Path | None = None) -> EngineProfile:
    """The profile of this name in `folder` (None: those that come with the project), or of this YAML file.

    Raises `ConfigError`, which names the file and the line, or the nearest profile that there is.
    """
    file = resolve_file("profile", given, folder or FOLDER)
    read = read_profile_file(file)
    numbers = {field.name: getattr(read, field.name).value for field in fields(EngineProfile) if field.name != "name"}
    return EngineProfile(name=file.stem, **numbers)
