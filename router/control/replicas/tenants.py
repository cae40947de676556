"""The limits of tenants over several routers: each tells the others what its workers charged, and decides by itself.

A router that is gone or silent for `SILENT_S` holds no requests any more; what it charged and spent remains. Where
routers do not hear of each other, each side grants the whole limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

from router.clock import Clock
from router.control.replicas.peers import SILENT_S
from router.control.workers.messages import Message, TenantReport
from router.control.workers.tenants import LeaderTenants
from router.tasks import Tasks

MEMBERS_S = 0.25  # between looks at which routers are heard


class SharedTenants:
    """Lets `tenants` tell other routers with `share`, and hear them. `heard_runs` returns the runs that are heard."""

    def __init__(
        self,
        tenants: LeaderTenants,
        share: Callable[[Message], None],
        heard_runs: Callable[[], Sequence[str]],
        clock: Clock,
    ) -> None:
        self._tenants = tenants
        self._heard_runs = heard_runs
        self._clock = clock
        self._heard_s: dict[str, float] = {}  # when each router was heard last
        tenants.share = share

    def start(self, tasks: Tasks) -> None:
        tasks.supervise("tenants of replicas", self._follow)

    def report(self, message: Message) -> None:
        pass  # workers are told apart from other routers

    def state(self) -> Iterator[Message]:
        return self._tenants.state()

    def apply(self, message: Message, run: str) -> None:
        if isinstance(message, TenantReport):
            self._heard_s[run] = self._clock.now()
            self._tenants.apply_from_replica(run, message)

    def poll(self) -> None:
        """End the requests of routers that are not heard any more."""
        now = self._clock.now()
        for run in self._heard_runs():
            if run in self._heard_s:
                self._heard_s[run] = now
        for run in [run for run, heard_s in self._heard_s.items() if now - heard_s > SILENT_S]:
            del self._heard_s[run]
            self._tenants.forget_replica(run)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(MEMBERS_S)
            self.poll()
