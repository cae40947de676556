"""Requests that run all the time while something happens to pods, and where each of them went.

The engines are emulated ones on loopback addresses, and stay alive, so that only discovery can keep requests away.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from router.backends.discovery.kubernetes.reflector import Reflector
from router.clock import Clock
from router.fleet.instance import Instance, InstanceState
from tests.e2e.conftest import MODEL, Router
from tests.fakes.engines import eventually
from tests.gateway.cluster import Cluster

BODY = {"model": MODEL, "prompt": "Where do fleets live? " * 10, "max_tokens": 1, "stream": True}
LATE_S = 1.0
SOON_S = 10.0
A, B, C = "127.0.7.1", "127.0.7.2", "127.0.7.3"

Start = Callable[..., Any]


class Sent(NamedTuple):
    at: float
    target: str
    status: int


class Traffic:
    """Requests one after the other, and where each went. A pod is named by its name, or by the id of its instance."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self.sent: list[Sent] = []

    async def run(self) -> None:
        while True:
            at = now()
            answer = await self._router.post("/v1/completions", BODY)
            self.sent.append(Sent(at, answer.headers.get("x-warmroute-target", ""), answer.status_code))

    async def no_request_after(self, pod: str, said_at: float) -> None:
        """Wait until requests of two seconds after `said_at` were answered, and check that none of those that began
        more than a second after it went to the pod.
        """
        await eventually(lambda: self.sent and self.sent[-1].at > said_at + 2 * LATE_S, SOON_S)
        late = [sent for sent in self.sent if sent.at > said_at + LATE_S]
        assert not [sent for sent in late if _went_to(sent, pod)]
        assert {sent.status for sent in late} == {200}

    async def reaches(self, pod: str) -> None:
        """Wait for a request from now on that went to the pod."""
        begun = len(self.sent)
        await eventually(lambda: any(_went_to(sent, pod) for sent in self.sent[begun:]), SOON_S)


def _went_to(sent: Sent, pod: str) -> bool:
    return sent.target.startswith((f"{pod}.", f"{pod}/"))


@asynccontextmanager
async def traffic(router: Router) -> AsyncIterator[Traffic]:
    running = Traffic(router)
    task = asyncio.create_task(running.run())
    try:
        yield running
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def pods_under_traffic(
    cluster: Cluster, start: Start, clock: Clock | None = None, **pods: str
) -> AsyncIterator[tuple[Router, Traffic]]:
    """Make pods at addresses, wait until they are ready, and send requests to them as long as the block lasts."""
    for name, address in pods.items():
        await cluster.make_pod(name, address)
    async with start(clock=clock) as router:
        await ready(router, *pods)
        async with traffic(router) as requests:
            yield router, requests


def find(router: Router, pod: str) -> Instance | None:
    return next((found for found in router.core.fleet if found.id.startswith(f"{pod}.")), None)


def pods_of(router: Router) -> Reflector[Any]:
    """What the router knows of pods."""
    pods = router.app.core.discoveries["kubernetes"]._pods  # type: ignore[attr-defined]
    assert isinstance(pods, Reflector)
    return pods


async def ready(router: Router, *pods: str) -> None:
    def states() -> list[bool]:
        return [(found := find(router, pod)) is not None and found.state is InstanceState.READY for pod in pods]

    await eventually(lambda: all(states()), SOON_S)


def now() -> float:
    return asyncio.get_running_loop().time()


class CompressedClock:
    """The machine's clock, which runs `factor` times as fast from `run_at` on."""

    def __init__(self) -> None:
        self._factor = 1.0
        self._turned_at = time.monotonic()
        self._before_s = 0.0

    def run_at(self, factor: float) -> None:
        self._before_s, self._turned_at, self._factor = self.now(), time.monotonic(), factor

    def now(self) -> float:
        return self._before_s + (time.monotonic() - self._turned_at) * self._factor

    def wall(self) -> float:
        return time.time()
