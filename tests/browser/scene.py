"""A fleet at night: engines with long names, of which some fail, requests of two tenants, and an experiment.

What the page shows of it is what an operator sees: real engines, real failures, real records.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from router.fleet.instance import InstanceState
from tests.e2e.chats import PATH
from tests.e2e.conftest import MODEL, Router, _router
from tests.fakes.engines import FakeEngine, engine, eventually

TENANTS = ("search-and-recommendations", "chat-of-the-european-customers")
POLICIES = {
    "warm": {"scorers": [{"name": "expected_ttft"}]},
    "least_requests_of_the_engines": {"scorers": [{"name": "least_requests"}]},
    "least_work_left": {"scorers": [{"name": "queue_depth"}]},
}
EXPERIMENT = {
    "unit": "request",
    "seed": 1,
    "arms": {"warm": 50, "least_requests_of_the_engines": 50},
    "shadows": ["least_work_left"],
    "guard": {"min_units": 1000},
}
COMMON = "All of this is common to everybody who asks here. " * 12
HEALTH = {"interval_s": 1.0, "failures": 2}


class Scene(NamedTuple):
    """The router, and the ids of the records of an answered and of a failed request."""

    router: Router
    answered: str
    failed: str

    @property
    def url(self) -> str:
        return self.router.admin_url


def name_of(number: int) -> str:
    """Return an engine's name, which differs from the others' in its middle only."""
    return f"vllm-llama-{number:03}.inference-eu.svc.cluster.local"


@asynccontextmanager
async def scene(engines: int, folder: Path) -> AsyncIterator[Scene]:
    """A router and so many engines: one is down, one cuts connections, one answers 500."""
    keys = folder / "keys"
    keys.write_text("".join(f"{hashlib.sha256(name.encode()).hexdigest()} {name}\n" for name in TENANTS))
    clients = {"keys_file": str(keys), "service_classes": {"default": {"limits": {"requests_per_minute": 1000}}}}
    async with AsyncExitStack() as life:
        lost = AsyncExitStack()
        fakes = [await (life if n else lost).enter_async_context(engine()) for n in range(engines)]
        instances = [{"name": name_of(n), "url": fake.url} for n, fake in enumerate(fakes)]
        sections = {"policies": POLICIES, "experiment": EXPERIMENT, "clients": clients}
        running = _router(fakes, wait=False, fleet={"instances": instances, "health": HEALTH}, **sections)
        r = await life.enter_async_context(running)
        await eventually(lambda: {one.state for one in r.core.fleet} == {InstanceState.READY})
        await eventually(r.proved)
        await eventually(r.polled)
        await lost.aclose()
        await eventually(lambda: r.core.fleet.get(name_of(0)).state is InstanceState.DOWN)
        answered = [await say(r, n) for n in range(12)][-1]
        failed = await fail(r, fakes[1:])
        yield Scene(r, answered, failed)


async def say(r: Router, number: int) -> str:
    """Send a chat; return the id of its record."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": f"{COMMON}Question {number}?"}]}
    headers = {"x-api-key": TENANTS[number % len(TENANTS)]}
    answer = await r.post(PATH, body | {"stream": True, "max_tokens": 4}, headers=headers)
    return answer.headers["x-warmroute-record"]


async def fail(r: Router, engines: list[FakeEngine]) -> str:
    """Send a chat to engines that answer 500; return the id of its record."""
    for one in engines:
        one.faults(error_rate=1.0)
    failed = await say(r, 99)
    for one in engines:
        one.faults(error_rate=0.0)
    return failed
