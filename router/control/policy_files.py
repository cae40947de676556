"""Read the configuration files of a running router: the part that takes effect live, and changes in the rest.

Live are `active`, `experiment`, `policies` and `policies_dir` of the main file, and the policies in that folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from router.config.reader import read_all
from router.control.proposals import FileSettings

LIVE_KEYS = frozenset({"active", "experiment", "policies", "policies_dir"})


class PolicyFiles(NamedTuple):
    settings: FileSettings
    folder: Path | None  # of policies
    rest: dict[str, Any]  # what takes effect only after a restart, as plain data


def read(file: Path) -> PolicyFiles:
    """Read all files strictly. Takes milliseconds, so call it in a thread. Raises ConfigError."""
    config, policies = read_all(file)
    folder = None if config.policies_dir is None else Path(config.policies_dir)
    rest = config.model_dump(mode="json", exclude=set(LIVE_KEYS))
    return PolicyFiles(FileSettings(config.active, config.experiment, policies), folder, rest)


def find_restart_keys(first: PolicyFiles, now: PolicyFiles) -> list[str]:
    """Return the keys, such as `limits.grace_s`, that differ from `first` and need a restart to take effect."""
    return list(_find_differences(first.rest, now.rest, ""))


def _find_differences(one: Mapping[str, Any], other: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for key in dict.fromkeys((*one, *other)):
        before, after = one.get(key), other.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from _find_differences(before, after, f"{prefix}{key}.")
        elif before != after:
            yield f"{prefix}{key}"
