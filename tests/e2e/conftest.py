"""A whole router in front of emulated engines, on real sockets, for the tests of this folder.

    async with router([a, b], usage="observe") as r:    in this process and loop; look inside with r.app, r.core
    async with router_process(config) as r:             a process of its own, for signals and memory

Both yield when every engine is known, heard and proved, so a test's first request already meets the usual state.
`await r.record(answer)` is what the router wrote down about it, read through the admin API as anybody would.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop

from router.app import App
from router.clock import Clock
from router.config import schema
from router.fleet.instance import InstanceState
from router.lab.emulator.supervisor import EmulatedEngine
from router.request.concurrency import ConcurrencyLimiter
from router.scheduling.scheduler import Scheduler
from tests.fakes.engines import FakeEngine, eventually
from tests.paths import ROOT, TOKENIZER
from tests.patience import PATIENCE_S

MODEL = "warm-tiny"
WARM = {"scorers": [{"name": "prefix_overlap"}], "picker": {"name": "best"}}
SOON = {"idle_interval_s": 0.05}  # the first look at a metrics page, which tells the block size, comes within this
LOCAL: dict[str, Any] = {"host": "127.0.0.1", "port": 0}
PROCESS_START_S = PATIENCE_S
LISTENING = re.compile(rb"listening on ([\w.]+):(\d+), admin on ([\w.]+):(\d+)")

PASS_SOCKETS = """
import json, os, sys
fds = [os.dup2(fd, 100 + n, inheritable=False) for n, fd in enumerate(json.loads(sys.argv[1]))]
for n, fd in enumerate(fds):
    os.dup2(fd, 3 + n)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(fds))}
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""  # as a service manager passes its sockets, see sd_listen_fds(3)

Json = dict[str, Any]
Engine = FakeEngine | EmulatedEngine | str | Mapping[str, Any]
"""One engine of a fleet: a running fake, a url, or the fields of `schema.Instance`."""


def pytest_asyncio_loop_factories(config: Any, item: Any) -> dict[str, Any]:
    """Everything here runs on uvloop, as production does."""
    return {"uvloop": uvloop.new_event_loop}


class RouterClient:
    """A running router from outside: its two addresses, and clients for them."""

    def __init__(self, url: str, admin_url: str) -> None:
        self.url = url
        self.admin_url = admin_url
        self.http = self.client(verify=False)
        self.admin = httpx.AsyncClient(base_url=admin_url, timeout=PATIENCE_S, verify=False)

    def client(self, **options: Any) -> httpx.AsyncClient:
        """Return another client of the public API, with connections of its own. The caller closes it."""
        own = {"base_url": self.url, "timeout": PATIENCE_S, "limits": httpx.Limits(max_connections=None)}
        return httpx.AsyncClient(**(own | options))

    async def close(self) -> None:
        await self.http.aclose()
        await self.admin.aclose()

    async def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        """`body` as JSON, or bytes as they are."""
        content = body if isinstance(body, bytes) else json.dumps(body)
        headers = {"content-type": "application/json"} | options.pop("headers", {})
        return await self.http.post(path, content=content, headers=headers, **options)

    async def record(self, of: httpx.Response | str) -> Json:
        """The finished record of an answer, or by its id."""
        id = of if isinstance(of, str) else of.headers["x-warmroute-record"]
        async with asyncio.timeout(PATIENCE_S):
            while not (found := (await self.admin.get(f"/admin/records/{id}")).raise_for_status().json())["done"]:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        return dict(found)

    async def records(self, limit: int = 50) -> list[Json]:
        """The newest first."""
        answer = await self.admin.get("/admin/records", params={"limit": limit})
        return list(answer.raise_for_status().json()["records"])

    async def instances(self) -> dict[str, Json]:
        """What the admin page says, by instance id."""
        answer = (await self.admin.get("/admin/instances")).raise_for_status().json()
        return {instance["id"]: instance for instance in answer["instances"]}

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of all samples of `name` with these labels."""
        page = (await self.http.get("/metrics")).raise_for_status().text
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        lines = [line for line in page.splitlines() if re.match(rf"{re.escape(name)}[ {{]", line)]
        return sum(float(line.rpartition(" ")[2]) for line in lines if all(label in line for label in wanted))


class Router(RouterClient):
    """A router in this process."""

    def __init__(self, app: App, engines: Sequence[FakeEngine], scheme: str) -> None:
        super().__init__(f"{scheme}://127.0.0.1:{app.port}", f"http://127.0.0.1:{app.admin_port}")
        self.app = app
        self.engines = engines

    @property
    def core(self) -> Scheduler:
        return self.app.core.scheduler

    @property
    def limiter(self) -> ConcurrencyLimiter:
        return self.app.services.limiter

    @property
    def booked(self) -> int:
        """Requests in the books of all targets."""
        return sum(instance.requests for instance in self.core.fleet)

    def idle(self) -> bool:
        """Nothing is under way and every count is back where it began."""
        prefilling = sum(t.load_book.prefilling for i in self.core.fleet for t in i.targets.values())
        return (self.limiter.in_flight, self.limiter.held_bytes, self.booked, prefilling) == (0, 0, 0, 0)

    def proved(self) -> bool:
        """Token ids were compared with every engine that serves their model, unless no chat can have any."""
        told = self.app.core.tokenization.report()
        served = [instance.base for instance in self.core.fleet]
        shown = {base: told[base] for base in served if base in told}
        return all(one.source == "unknown" or one.proofs >= served.count(base) for base, one in shown.items())

    def polled(self) -> bool:
        """Every target's metrics page has been read."""
        targets = [target for instance in self.core.fleet for target in instance.targets.values()]
        return all(target.block_tokens is not None for target in targets)

    def heard(self) -> bool:
        """Every event that the engines published so far has been applied."""
        return all(self._heard(engine) for engine in self.engines)

    def _heard(self, engine: FakeEngine) -> bool:
        member = next(i for i in self.core.fleet if i.config.url == engine.url)
        for core in engine.server.cores.all:
            if core.publisher is not None:
                stream = self.core.indexer.describe_stream(f"{member.id}/{core.publisher.rank}")
                if stream is None or stream.sequencer is None or not stream.sequencer.trusted:
                    return False
                if (stream.sequencer.last_seq or 0) < core.publisher._sequence - 1:
                    return False
        return True

    async def hear(self) -> None:
        await eventually(self.heard)


class RouterProcess(RouterClient):
    """A router in a process of its own. `log` is what it has written to standard error so far."""

    def __init__(self, process: asyncio.subprocess.Process, log: bytearray, url: str, admin_url: str) -> None:
        super().__init__(url, admin_url)
        self.process = process
        self.log = log

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def errors(self) -> list[str]:
        """Lines of the log that are errors."""
        return [line for line in self.log.decode().splitlines() if " ERROR " in line]

    @property
    def rss_bytes(self) -> int:
        """Resident memory now."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


def instance_of(engine: Engine) -> Json:
    """As it stands in a configuration."""
    match engine:
        case str():
            return {"url": engine}
        case FakeEngine() | EmulatedEngine():
            return {"url": engine.url}
        case _:
            return dict(engine)


def config_of(engines: Sequence[Engine], **overrides: Any) -> Json:
    """A configuration on free ports with one policy that looks at caches only. An override of a section keeps the
    rest of the section.
    """
    config: Json = {
        "listen": LOCAL | {"header_timeout_s": PATIENCE_S},  # clients that share this event loop may be slow
        "admin": LOCAL,
        "fleet": {"instances": [instance_of(engine) for engine in engines], "metrics": SOON},
        "tokenizers": {MODEL: {"path": TOKENIZER}},
        # engines get what clients sent, and nothing that they did not; on a busy machine token ids come late
        "tokens": {"token_id_passthrough": "off", "budget_ms": 30_000},
        "limits": {"continuation_bytes": 0},  # the same
        "policies": {"warm": WARM},
        "active": "warm",
        "seed": 1,
    }
    for name, value in overrides.items():
        keeps = isinstance(value, dict) and name not in ("tokenizers", "policies")
        config[name] = config.get(name, {}) | value if keeps else value
    return config


@asynccontextmanager
async def _router(
    engines: Sequence[Engine] = (), *, wait: bool = True, clock: Clock | None = None, **overrides: Any
) -> AsyncIterator[Router]:
    config = schema.Config.model_validate(config_of(engines, **overrides))
    app = App(config, clock)
    await app.start()
    fakes = [engine for engine in engines if isinstance(engine, FakeEngine)]
    running = Router(app, fakes, "https" if config.listen.tls else "http")
    try:
        if wait:
            states = lambda: {i.id: i.state for i in app.core.scheduler.fleet}  # noqa: E731
            expected = len(config.fleet.instances)
            await eventually(lambda: sum(state is InstanceState.READY for state in states().values()) >= expected)
            await eventually(running.proved)
            await eventually(running.polled)
            await running.hear()
        yield running
    finally:
        await running.close()
        await app.stop()


@asynccontextmanager
async def _router_process(
    config: Json, folder: Path, *words: str, passed: Sequence[socket.socket] = (), env: Mapping[str, str] | None = None
) -> AsyncIterator[RouterProcess]:
    file = folder / "router.yaml"
    file.write_text(json.dumps({"listen": LOCAL, "admin": LOCAL} | config))  # JSON is YAML
    command = ["-m", "router", "serve", "--config", str(file), *words]
    fds = [one.fileno() for one in passed]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *(("-c", PASS_SOCKETS, json.dumps(fds)) if fds else ()), *command),
        cwd=ROOT,
        stderr=asyncio.subprocess.PIPE,
        pass_fds=fds,
        env=os.environ | dict(env or {}),
    )
    log = bytearray()
    reading = asyncio.create_task(_collect(process, log))
    try:
        await eventually(lambda: LISTENING.search(log) or process.returncode is not None, PROCESS_START_S)
        found = LISTENING.search(log)
        assert found is not None, f"it ended with {process.returncode}: {log.decode()}"
        host, port, admin_host, admin_port = (part.decode() for part in found.groups())
        scheme = "https" if "tls" in config.get("listen", {}) else "http"
        running = RouterProcess(process, log, f"{scheme}://{host}:{port}", f"http://{admin_host}:{admin_port}")
        try:
            async with asyncio.timeout(PROCESS_START_S):
                while (await running.http.get("/ready")).status_code != 200:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            yield running
        finally:
            await running.close()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await reading


async def _collect(process: asyncio.subprocess.Process, log: bytearray) -> None:
    assert process.stderr is not None
    while data := await process.stderr.read(65536):
        log += data


@pytest.fixture
def router() -> Callable[..., AbstractAsyncContextManager[Router]]:
    """`router(engines, wait=True, clock=None, **config sections)`; see `config_of` for what it starts from."""
    return _router


@pytest.fixture(scope="module")
def router_of_module() -> Callable[..., AbstractAsyncContextManager[Router]]:
    """The same, for fixtures that keep one router for a whole file."""
    return _router


@pytest.fixture
def router_process(tmp_path: Path) -> Callable[..., AbstractAsyncContextManager[RouterProcess]]:
    """`router_process(config, *words, passed=[socket], env={})`: yields when it is ready; killed at the end unless it
    has ended by itself.
    """
    return lambda config, *words, **how: _router_process(config, tmp_path, *words, **how)


@pytest.fixture
def fleet_config() -> Callable[..., Json]:
    """`fleet_config(engines, **sections)`: a configuration to give to `router_process`."""
    return config_of
