"""Closed sets of label values."""

from __future__ import annotations

from collections.abc import Callable

OTHER = "other"
TIERS = ("gpu", "cpu", "disk")


class LabelValues:
    """A closed set of label values: the first `limit` values that `admits` accepts; every other value becomes
    `other`.
    """

    def __init__(self, limit: int, admits: Callable[[str], bool] = lambda value: True) -> None:
        self._limit = limit
        self._admits = admits
        self._known: set[str] = set()

    def __call__(self, value: str) -> str:
        if value in self._known:
            return value
        if len(self._known) >= self._limit or not self._admits(value):
            return OTHER
        self._known.add(value)
        return value

    def forget(self, value: str) -> None:
        """Make room for another value."""
        self._known.discard(value)
