"""Where the list of instances comes from: what every discovery offers.

A discovery says *the whole list*, first at once and then whenever it changes; what that means (who joins, who leaves)
is for whoever listens to work out. One that cannot read its source keeps quiet: the last list stands, and `trouble`
says what is wrong, because an unreadable file is no reason to send a fleet away.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from router.config import schema


class Discovery(Protocol):
    @property
    def trouble(self) -> str | None:
        """For people: why the list may be out of date; None when all is well."""

    def watch(self) -> AsyncIterator[list[schema.InstanceConfig]]:
        """The whole list, now and after every change. Ids are unique in it. Ends only if it can never change."""
