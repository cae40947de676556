"""Logs what became of the requests that an instance failed: one line per instance, a moment after the first."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Final

from router.scheduling.policy.record import Record
from router.tasks import Tasks

log = logging.getLogger("warmroute.request")

SETTLE_S: Final = 3.0  # in which further failures join the same line
FAILED: Final = frozenset(("connect", "died", "failed", "stuck", "broken", "continued"))
"""Ends of attempts for which the instance is to blame."""


class FailedAttempts:
    """The failed attempts of the last moment, by instance."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._counts: dict[str, Counter[str]] = {}

    def add(self, record: Record) -> None:
        """Count the failed attempts of a request that has ended."""
        failed = {attempt.decision.target: attempt.end for attempt in record.attempts if attempt.end in FAILED}
        if not failed:
            return
        answered = record.error is None and record.status is not None and record.status < 400
        for target, end in failed.items():
            outcome = "failed" if not answered else "continued" if end == "continued" else "answered"
            if (counts := self._counts.get(target)) is None:
                counts = self._counts[target] = Counter()
                self._tasks.spawn(f"failures of {target}", self._report(target))
            counts[outcome] += 1

    async def _report(self, target: str) -> None:
        await asyncio.sleep(SETTLE_S)
        log.warning("%s", describe(target, self._counts.pop(target)))


def describe(target: str, counts: Counter[str]) -> str:
    """Return the line about the failed attempts of one target."""
    total, continued = sum(counts.values()), counts["continued"]
    return (
        f"{target} failed {total} request{'s' * (total != 1)}: {counts['answered']} answered by other engines, "
        f"{continued} stream{'s' * (continued != 1)} continued, {counts['failed']} lost; each: "
        f"GET /admin/records?error=attempt&target={target}"
    )
