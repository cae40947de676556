"""Two deployments for the alerts: `north`, which has the faults, and `south`, which has none.

North is the stage of a game day (`router/lab/gameday`): emulated engines, a pool and two routers as processes, under
the load of two tenants, one of which is always at its limit. Beside the fleet it has engines with models of their own,
in the test's process and in a file that the routers follow, for faults that would disturb the others.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
import yaml
import zmq.asyncio

from router.clock import SystemClock
from router.config.sections.gameday import GamedayFile
from router.lab.emulator.vocabulary import DATA
from router.lab.gameday.clients import GamedayClients
from router.lab.gameday.reading import sum_samples
from router.lab.gameday.stage import Stage
from router.lab.local_stack.preflight import free_ports
from tests.fakes.engines import FakeEngine, engine
from tests.patience import PATIENCE_S

NUMBERS = itertools.count()  # of messages
FIRES_S = 60.0 + PATIENCE_S
MODELS = ("frail", "late", "liar", "narrow", "odd", "strange")
SPREAD = {"scorers": [{"name": "expected_ttft"}], "picker": {"name": "softmax", "temperature": 50}}  # evenly
SETTINGS: dict[str, Any] = {
    "policies": dict.fromkeys(("spread", "same"), SPREAD),
    "limits": {"concurrent": 64, "retry_ratio": 1.0, "retry_burst": 50},
    "pool": {"deadline_ms": 2000},
    "clients": {
        "tenants": {"tenant-1": {"service_class": "limited"}},
        "service_classes": {"default": {}, "limited": {"limits": {"concurrent": 1}}},
    },
    "tokenizers": {model: {"path": str(DATA)} for model in MODELS if model != "odd"},
}
FLEET: dict[str, Any] = {
    "health": {"interval_s": 0.5, "timeout_s": 2.0, "failures": 2},
    "metrics": {"busy_interval_s": 0.3, "idle_interval_s": 0.5},
    "file_poll_s": 0.3,
}


class North(NamedTuple):
    """The deployment that has the faults. `own`: its engines with models of their own, in this process."""

    stage: Stage
    own: Mapping[str, FakeEngine]
    list_file: Path  # of these engines
    events: zmq.asyncio.Socket  # on which the engine `strange` seems to publish
    http: httpx.AsyncClient  # with a client key

    @property
    def urls(self) -> list[str]:
        return [router.url for router in self.stage.routers]

    async def ask(self, model: str, *, router: int = 0, **fields: Any) -> int:
        """Send a completion of this model; return the status of its answer."""
        body = {"model": model, "prompt": "Once upon a time", "max_tokens": 4} | fields
        return (await self.http.post(f"{self.urls[router]}/v1/completions", json=body)).status_code

    async def chat(self, model: str, text: str) -> int:
        """Send a chat; return the status of its answer."""
        body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 4}
        return (await self.http.post(f"{self.urls[0]}/v1/chat/completions", json=body)).status_code

    async def publish(self, payload: bytes) -> None:
        """Publish a message as the engine `strange`."""
        await self.events.send_multipart([b"", next(NUMBERS).to_bytes(8, "big"), payload])

    async def metric(self, name: str, *labels: str, router: int = 0) -> float:
        page = (await self.http.get(f"{self.urls[router]}/metrics")).text
        return sum_samples(page, name, *labels)

    async def reach(self, name: str, value: float, *labels: str) -> None:
        """Wait until the metric has reached this value at both routers."""
        async with asyncio.timeout(FIRES_S):
            for router in (0, 1):
                while await self.metric(name, *labels, router=router) < value:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)


Begin = Callable[[North], AbstractAsyncContextManager[None]]


def again(step: Callable[[North], Any], pause_s: float = 0.3, at_once: int = 1) -> Begin:
    """Do something again and again, `at_once` side by side."""

    async def repeat(north: North) -> None:
        while True:
            with suppress(httpx.HTTPError):
                await step(north)
            await asyncio.sleep(pause_s)

    @asynccontextmanager
    async def begin(north: North) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(repeat(north)) for _ in range(at_once)]
        yield
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ends), ends

    return begin


async def say_nothing(north: North) -> None:
    """A batch without events: without a replay endpoint, events are trusted from the first one."""
    await north.publish(msgspec.msgpack.encode([time.time(), [], 0]))


@asynccontextmanager
async def run_north(folder: Path) -> AsyncIterator[North]:
    """Start the fleet with its routers, and the load of two tenants, one of which is always at its limit."""
    async with AsyncExitStack() as stack:
        usual = {"prefill_tokens_per_s": 4000.0, "decode_ms_per_token": 2.0}
        late, narrow = {"max_num_seqs": 1, "decode_ms_per_token": 50.0}, {"blocks": 64, "decode_ms_per_token": 50.0}
        options = {"frail-0": {}, "frail-1": {}, "late": late, "narrow": narrow}
        own = {}
        for name in ("frail-0", "frail-1", *MODELS[1:]):
            fake = engine(name=name, model=name.partition("-")[0], **(usual | options.get(name, {})))
            own[name] = await stack.enter_async_context(fake)
        (port,) = free_ports(1)
        events = zmq.asyncio.Context.instance().socket(zmq.PUB)
        stack.callback(events.close, linger=0)
        events.bind(f"tcp://127.0.0.1:{port}")
        listed: list[dict[str, Any]] = [{"name": name, "url": fake.url} for name, fake in own.items()]
        listed[-1]["kv_events"] = [{"rank": 0, "endpoint": f"tcp://127.0.0.1:{port}"}]
        list_file = folder / "engines.yaml"
        list_file.write_text(yaml.safe_dump(listed, sort_keys=False))
        script = GamedayFile.model_validate(
            {
                "about": "alerts",
                "policy": "spread",
                "fleet": {"engines": 6, "routers": 2, "pool": True, "prefill_tokens_per_s": 4000},
                "load": {
                    "agents": 12,
                    "turns": 4,
                    "first_tokens": 200,
                    "system_tokens": 100,
                    "turn_tokens": 50,
                    "think_s": 0.2,
                    "tenants": 2,
                },
                "router": SETTINGS | {"fleet": FLEET | {"file": str(list_file)}},
                "faults": [{"fault": "partition", "engine": 5, "at_s": 6.0, "until_s": 7.0}],
                "ends_s": 3600.0,
            }
        )
        stage = await stack.enter_async_context(Stage(script, folder))
        key = {"authorization": f"Bearer {stage.endpoint.api_keys[0]}"}
        http = await stack.enter_async_context(httpx.AsyncClient(headers=key, timeout=PATIENCE_S, trust_env=False))
        await stack.enter_async_context(load(stage))
        north = North(stage, own, list_file, events, http)
        await stack.enter_async_context(again(say_nothing, 0.5)(north))
        await north.reach("warmroute_stream_trusted", len(own) + 6)
        yield north


@asynccontextmanager
async def run_south(folder: Path) -> AsyncIterator[Stage]:
    script = GamedayFile.model_validate(
        {
            "about": "no alerts",
            "fleet": {"engines": 1},
            "load": {"agents": 1, "first_tokens": 200, "system_tokens": 100, "turn_tokens": 50},
            "faults": [{"fault": "kill", "at_s": 6.0}],
            "ends_s": 3600.0,
        }
    )
    async with Stage(script, folder) as stage, load(stage):
        yield stage


@asynccontextmanager
async def load(stage: Stage) -> AsyncIterator[None]:
    clock = SystemClock()
    clients = GamedayClients(stage.script, stage.endpoint, clock, clock.now())
    running = asyncio.create_task(clients.run_load(stage.script.ends_s, lambda sent: None))
    yield
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
