"""Finds the leading Mooncake master, the only one that has the list of the pool's content.

    GET /health of all, every `interval_s`  ->  {"role": "leader", "service_ready": true, ...}

A query that finds the leader unreachable or no longer leading reports this (`on_lost`): from then on there is no
leader, every lookup returns "unknown" at once, and the next poll, which may find the recovered leader or its
successor, follows immediately. During an election there may be no leader, and after a split two masters may claim
to lead: the current leader is used while it claims to lead, or else the first in the configured order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from router.backends.fetch import Fetch, HttpAnswer
from router.clock import Clock
from router.tasks import Alarm, Tasks

MIN_PAUSE_S = 0.1  # between two polls, however often the leader is lost


class MasterState(NamedTuple):
    """State of one master at the last poll."""

    instance: str
    leads: bool
    trouble: str | None  # why it does not lead; None for a healthy standby
    looked_at: float


class _Health(msgspec.Struct):
    role: str = "leader"
    service_ready: bool = True


class MasterLeader:
    """Polls `masters`, the names under which `fetch` reaches them, in the configured order. Calls `changed` whenever
    a master begins to lead.
    """

    def __init__(
        self,
        masters: Sequence[str],
        interval_s: float,
        fetch: Fetch,
        tasks: Tasks,
        clock: Clock,
        changed: Callable[[], None],
    ) -> None:
        self.current: str | None = None
        self.masters: tuple[MasterState, ...] = ()
        self._names = masters
        self._interval_s = interval_s
        self._fetch = fetch
        self._tasks = tasks
        self._clock = clock
        self._changed = changed
        self._alarm = Alarm()

    def start(self) -> None:
        """Start polling."""
        self._tasks.supervise("leader", self._run)

    def on_lost(self, instance: str) -> None:
        """Record that `instance`, queried as the leader, is gone, silent, or not the leader."""
        if self.current == instance:
            self.current = None
            self._alarm.ring()

    async def poll(self) -> None:
        """Query every master once."""
        self.masters = tuple(await asyncio.gather(*map(self._query, self._names)))
        leading = [master.instance for master in self.masters if master.leads]
        if self.current in leading:
            return
        self.current = leading[0] if leading else None
        if self.current is not None:
            self._changed()

    async def _run(self) -> None:
        while True:
            await self.poll()
            await asyncio.sleep(min(MIN_PAUSE_S, self._interval_s))
            await self._alarm.sleep(self._interval_s - MIN_PAUSE_S)

    async def _query(self, instance: str) -> MasterState:
        answer = await self._fetch(instance, "/health", timeout_s=self._interval_s)
        leads, trouble = read_health(answer)
        return MasterState(instance, leads, trouble, self._clock.now())


def read_health(answer: HttpAnswer | None) -> tuple[bool, str | None]:
    """Return whether the master leads, and why it does not; None for a healthy master."""
    if answer is None:
        return False, "GET /health: no answer"
    if answer.status != 200:
        return False, f"GET /health: {answer.status}"
    if answer.body.strip() == b"OK":  # as documented for masters without high availability
        return True, None
    try:
        health = msgspec.json.decode(answer.body, type=_Health)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False, "GET /health: not the state of a master"
    if health.role == "leader" and not health.service_ready:
        return False, "leads, but does not serve yet"
    return health.role == "leader", None
