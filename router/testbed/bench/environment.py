"""What a benchmark runs on: engines, the pool under them, and how a router in front of them would be configured.

A site comes from a stack that runs already, or from one that the command starts for the time; this room cannot tell
and need not. What it can do is look whether a stack answers where a configuration says it would, and empty its caches.
"""

from __future__ import annotations

from typing import NamedTuple

import httpx

from router.clock import Clock
from router.config.schema import Config, InstanceConfig
from router.config.sections.local_stack import LocalStackConfig
from router.errors import WarmrouteError
from router.testbed.bench.engine_counters import CountersUnavailable, MasterCounts, fetch_counters, poll_until
from router.testbed.loadgen.conversations import VOCABULARY

HOST = "127.0.0.1"
WIPED_S = 10.0


class Environment(NamedTuple):
    engines: tuple[str, ...]  # base URLs
    master: str | None  # base URL of the Mooncake master's HTTP port; None: there is no pool
    model: str  # as the engines serve it
    router_config: Config  # a router that has these engines as its fleet, and this pool

    @property
    def vocabulary(self) -> range:
        """Of its model, as far as prompts use it."""
        return VOCABULARY


class EngineFacts(NamedTuple):
    version: str  # "vLLM 0.32.0+cpu"
    block_tokens: int
    context_tokens: int  # longest prompt and answer together


class BenchFailed(WarmrouteError):
    """A benchmark cannot start or go on; one line."""


async def find_running_stack(settings: Config, stack: LocalStackConfig) -> Environment | None:
    """The stack that `stack` describes, if all of it answers; `settings` are those of a router in front of it."""
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
    front = settings.model_copy(update={"fleet": fleet, "pool": pool})
    return Environment(engines, master, stack.served_name, front)


async def read_engine_facts(site: Environment) -> EngineFacts:
    """What the first engine says of itself. Raises BenchFailed when it does not."""
    url = site.engines[0]
    async with httpx.AsyncClient(timeout=10.0, trust_env=False) as http:
        page = await fetch_counters(http, url)
        try:
            version = (await http.get(f"{url}/version")).json()["version"]
            models = (await http.get(f"{url}/v1/models")).json()["data"]
            context = next(model["max_model_len"] for model in models if model["id"] == site.model)
            block = int(page.label("vllm:cache_config_info", "block_size") or "")
        except (httpx.HTTPError, ValueError, LookupError, TypeError, StopIteration) as trouble:
            raise BenchFailed(f"{url} does not say what it is: {type(trouble).__name__}: {trouble}") from trouble
    return EngineFacts(f"vLLM {version}", block, context)


async def clear_caches(site: Environment, clock: Clock) -> str | None:
    """Empties every engine's cache and the pool; or says why it could not be shown to have happened."""
    async with httpx.AsyncClient(timeout=30.0, trust_env=False) as http:
        for engine in site.engines:
            try:
                answer = await http.post(f"{engine}/reset_prefix_cache", params={"reset_external": "true"})
            except httpx.HTTPError as trouble:
                return f"{engine}/reset_prefix_cache: {type(trouble).__name__}"
            if answer.status_code != 200:
                return (
                    f"{engine}/reset_prefix_cache: {answer.status_code} (engines offer it with VLLM_SERVER_DEV_MODE=1)"
                )
        if site.master is None:
            return None
        try:
            left = await poll_until(clock, WIPED_S, lambda: _held(http, site), lambda keys: not keys)
        except CountersUnavailable as trouble:
            return str(trouble)
        return f"the pool still holds {left:.0f} keys" if left else None


async def _held(http: httpx.AsyncClient, site: Environment) -> float | None:
    assert site.master is not None
    return MasterCounts.read(await fetch_counters(http, site.master)).keys
