"""What the operator's files say: the part that takes effect live, and the rest, of which only changes are told.

Live are the main file's `active`, `experiment`, `policies` and `policies_dir`, and the policies in that folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from router.config.reader import read_all
from router.control.proposals import FileSettings

LIVE = frozenset({"active", "experiment", "policies", "policies_dir"})


class PolicyFiles(NamedTuple):
    said: FileSettings
    folder: Path | None  # of policies
    rest: dict[str, Any]  # what does not take effect live, as plain data


def read(file: Path) -> PolicyFiles:
    """All of it, strictly: takes milliseconds, so call it in a thread. Raises ConfigError."""
    config, policies = read_all(file)
    folder = None if config.policies_dir is None else Path(config.policies_dir)
    rest = config.model_dump(mode="json", exclude=set(LIVE))
    return PolicyFiles(FileSettings(config.active, config.experiment, policies), folder, rest)


def must_restart(first: PolicyFiles, now: PolicyFiles) -> list[str]:
    """The keys that are not as they were when the process read them: `limits.grace_s`."""
    return list(_differing(first.rest, now.rest, ""))


def _differing(one: Mapping[str, Any], other: Mapping[str, Any], below: str) -> Iterator[str]:
    for key in dict.fromkeys((*one, *other)):
        before, after = one.get(key), other.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from _differing(before, after, f"{below}{key}.")
        elif before != after:
            yield f"{below}{key}"
