"""The environment of a benchmark: engines, the pool under them, and a router in front of them for the time of one arm.

Engines and pool are a local stack that runs already, or one that is started for the benchmark; the benchmarks do not
know which. The router is `warmroute serve` in a process of its own, as in production: the work of the load client and
of the router do not delay each other, and nothing is left of what the router of an earlier arm had learned.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import httpx

from router.clock import Clock
from router.config.reader import dump_yaml, load_policies
from router.config.schema import Config, InstanceConfig
from router.config.sections.local_stack import LocalStackConfig
from router.errors import ConfigError, WarmrouteError
from router.lab.child_process import ChildProcess
from router.lab.local_stack.preflight import free_ports
from router.lab.local_stack.supervisor import ReportLine, RunningStack, StackFailed, build_router_config
from tests.bench.real_stack.engine_counters import CountersUnavailable, MasterCounts, fetch_counters, poll_until

HOST = "127.0.0.1"
CLEAR_TIMEOUT_S = 10.0
READY_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
PORTS = ("first_port", "master_port", "master_http_port", "client_port")


class Environment(NamedTuple):
    engines: tuple[str, ...]  # base URLs
    master: str | None  # base URL of the Mooncake master's HTTP port; `None`: there is no pool
    model: str  # the name under which the engines serve it
    router_config: Config  # of a router with these engines as its fleet, and this pool


EnvironmentFactory = Callable[[bool], AbstractAsyncContextManager[Environment]]
"""Opens an environment over a pool (True) or without one (False) for the time of a block."""


class EngineFacts(NamedTuple):
    version: str  # "vLLM 0.32.0+cpu"
    block_tokens: int
    context_tokens: int  # longest prompt and answer together


class BenchFailed(WarmrouteError):
    """A benchmark cannot start or go on; one line."""


def environment_factory(settings: Config, logs: Path, report: ReportLine) -> EnvironmentFactory:
    """Return the factory for the `stack` of `settings`, with logs in `logs`. Raises ConfigError without `stack`."""
    stack_config = settings.stack
    if stack_config is None:
        raise ConfigError("stack: is needed to know which engines to measure")

    @asynccontextmanager
    async def open_environment(pool: bool) -> AsyncIterator[Environment]:
        if pool and (running := await find_running_stack(settings, stack_config)) is not None:
            report(f"measuring the stack that runs at {running.engines[0]}")
            yield running
            return
        own = {"store": pool, "logs_dir": str(logs / ("with-pool" if pool else "no-pool"))} | dict.fromkeys(PORTS, 0)
        async with _start_stack(stack_config.model_copy(update=own), report) as stack:
            urls = tuple(engine.url for engine in stack.engines)
            config = build_router_config(settings, stack)
            yield Environment(urls, stack.master_url, stack.config.served_name, config)

    return open_environment


@asynccontextmanager
async def _start_stack(config: LocalStackConfig, report: ReportLine) -> AsyncIterator[RunningStack]:
    """Start and stop the stack in a thread, so that the event loop can handle a Ctrl-C meanwhile."""
    cancelled = threading.Event()

    def check_cancelled(waiting_for: str) -> None:
        if cancelled.is_set():
            raise StackFailed(f"interrupted while {waiting_for}")

    stack = RunningStack(config, report=report, report_wait=check_cancelled)
    starting = asyncio.get_running_loop().run_in_executor(None, stack.__enter__)
    try:
        await asyncio.shield(starting)
        yield stack
    except asyncio.CancelledError:
        cancelled.set()
        raise
    finally:
        await asyncio.wait([starting])
        if starting.exception() is None:  # else it has stopped its processes itself
            await asyncio.to_thread(stack.__exit__, None, None, None)


async def find_running_stack(settings: Config, stack: LocalStackConfig) -> Environment | None:
    """Return the environment of a running `stack` for a router with `settings`; `None` unless all servers answer."""
    engines = tuple(f"http://{HOST}:{stack.first_port + number}" for number in range(stack.engines))
    master = f"http://{HOST}:{stack.master_http_port}" if stack.store else None
    async with httpx.AsyncClient(timeout=2.0, trust_env=False) as http:
        for url in (*engines, *([master] if master else [])):
            try:
                if (await http.get(f"{url}/health")).status_code != 200:
                    return None
            except httpx.HTTPError:
                return None
    instances = [InstanceConfig(name=f"engine-{number}", url=url) for number, url in enumerate(engines)]
    pool = settings.pool and settings.pool.model_copy(update={"masters": [master]} if master else {})
    fleet = settings.fleet.model_copy(update={"instances": instances, "embedded": None})
    config = settings.model_copy(update={"fleet": fleet, "pool": pool})
    return Environment(engines, master, stack.served_name, config)


async def read_engine_facts(environment: Environment) -> EngineFacts:
    """Ask the first engine. Raises BenchFailed when it does not report its facts."""
    url = environment.engines[0]
    async with httpx.AsyncClient(timeout=10.0, trust_env=False) as http:
        page = await fetch_counters(http, url)
        try:
            version = (await http.get(f"{url}/version")).json()["version"]
            models = (await http.get(f"{url}/v1/models")).json()["data"]
            context = next(model["max_model_len"] for model in models if model["id"] == environment.model)
            block = int(page.label("vllm:cache_config_info", "block_size") or "")
        except (httpx.HTTPError, ValueError, LookupError, TypeError, StopIteration) as error:
            raise BenchFailed(f"{url} does not report its facts: {type(error).__name__}: {error}") from error
    return EngineFacts(f"vLLM {version}", block, context)


async def clear_caches(environment: Environment, clock: Clock) -> str | None:
    """Empty every engine's cache and the pool; return why that failed or could not be verified, `None` on success."""
    async with httpx.AsyncClient(timeout=30.0, trust_env=False) as http:
        for engine in environment.engines:
            url = f"{engine}/reset_prefix_cache"
            try:
                answer = await http.post(url, params={"reset_external": "true"})
            except httpx.HTTPError as error:
                return f"{url}: {type(error).__name__}"
            if answer.status_code != 200:
                return f"{url}: {answer.status_code} (engines offer it with VLLM_SERVER_DEV_MODE=1)"
        if (master := environment.master) is None:
            return None

        async def count_keys() -> float | None:
            return MasterCounts.read(await fetch_counters(http, master)).keys

        try:
            left = await poll_until(clock, CLEAR_TIMEOUT_S, count_keys, lambda keys: not keys)
        except CountersUnavailable as error:
            return str(error)
        return f"the pool still holds {left:.0f} keys" if left else None


class RouterNotStarted(WarmrouteError):
    """The router ended, or was not ready in time."""


@asynccontextmanager
async def run_router(config: Config, policy: str, log: Path, clock: Clock) -> AsyncIterator[str]:
    """Yield the base URL of a router that can send to all its engines. Its configuration is written beside its log.

    Raises ConfigError for an unknown policy, RouterNotStarted when it ends or is not ready in time.
    """
    port, admin_port = free_ports(2)
    file = log.with_suffix(".yaml")
    _write_config(file, config, policy, port, admin_port)
    with log.open("wb") as out:
        process = await ChildProcess.start("router", "serve", "--config", str(file), stdout=out, stderr=out)
    try:
        async with httpx.AsyncClient(base_url=f"http://{HOST}:{admin_port}", timeout=2.0, trust_env=False) as http:
            ready = await poll_until(
                clock, READY_TIMEOUT_S, lambda: is_ready(http), lambda ready: ready or process.status is not None
            )
        if not ready:
            raise RouterNotStarted(f"the router with policy {policy} is not ready: {_last_line(log)} (full log: {log})")
        yield f"http://{HOST}:{port}"
    finally:
        await process.stop(STOP_TIMEOUT_S)


async def is_ready(http: httpx.AsyncClient) -> bool:
    """Return whether the router can send to all its engines; its admin port answers before it has read them."""
    try:
        answer = await http.get("/admin/instances")
    except httpx.HTTPError:
        return False
    states = {one["state"] for one in answer.json()["instances"]} if answer.status_code == 200 else set()
    return states == {"ready"}


def _last_line(log: Path) -> str:
    return log.read_text(errors="replace").strip().rpartition("\n")[2]


def _write_config(file: Path, config: Config, policy: str, port: int, admin_port: int) -> None:
    policies = load_policies(config)
    if policy not in policies:
        raise ConfigError(f"policy {policy!r} is not among {', '.join(sorted(policies))}")
    listen = config.listen.model_copy(update={"host": HOST, "port": port})
    admin = config.admin.model_copy(update={"host": HOST, "port": admin_port, "tokens": []})
    clients = type(config.clients)()  # authentication is not what is measured
    changes = {"listen": listen, "admin": admin, "clients": clients, "active": policy}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(dump_yaml(config.model_copy(update=changes), policies))
