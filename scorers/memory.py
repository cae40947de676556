"""Bounded memory of plug-ins that learn: the newest entries by name, as many as a constant says.

Targets and sessions come and go under new names for as long as a router runs, and plug-ins are not notified when
one is gone. So the entry that was stored longest ago is dropped first.
"""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")

MAX_TARGETS = 4096
MAX_SESSIONS = 65_536


def remember(known: dict[K, V], key: K, value: V, most: int) -> None:
    """Set `key` as the newest entry of `known`, and drop the oldest one if there are more than `most`."""
    known.pop(key, None)
    known[key] = value
    if len(known) > most:
        del known[next(iter(known))]
