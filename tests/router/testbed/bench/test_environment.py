"""Whether a stack answers, what its engines say of themselves, and empty caches: on one emulated engine."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from router.clock import SystemClock
from router.config.schema import Config
from router.config.sections.local_stack import LocalStackConfig
from router.testbed.bench.environment import (
    BenchFailed,
    Environment,
    clear_caches,
    find_running_stack,
    read_engine_facts,
)
from router.testbed.loadgen.client import ClientAnswer, LoadClient
from tests.fakes.engines import FakeEngine, engine

PROMPT = list(range(1000, 1100))


def described(fake: FakeEngine, **more: object) -> LocalStackConfig:
    port = urlsplit(fake.url).port
    return LocalStackConfig.model_validate(
        {"engines": 1, "first_port": port, "served_name": "m", "store": False} | more
    )


async def test_a_running_stack_is_found() -> None:
    async with engine(model="m") as fake:
        site = await find_running_stack(Config(), described(fake))
    assert site is not None
    assert (site.engines, site.master, site.model) == ((fake.url,), None, "m")
    assert [instance.url for instance in site.router_config.fleet.instances] == [fake.url]
    assert await find_running_stack(Config(), described(fake)) is None  # it has ended


async def test_a_stack_whose_master_is_silent_is_not_running() -> None:
    async with engine(model="m") as fake:
        assert await find_running_stack(Config(), described(fake)) is not None
        assert await find_running_stack(Config(), described(fake, store=True, master_http_port=1)) is None


async def test_what_an_engine_says_of_itself() -> None:
    async with engine(model="m", block_tokens=32, max_model_len=2048) as fake:
        facts = await read_engine_facts(Environment((fake.url,), None, "m", Config()))
        with pytest.raises(BenchFailed, match="does not say what it is"):
            await read_engine_facts(Environment((fake.url,), None, "another model", Config()))
    assert (facts.version, facts.block_tokens, facts.context_tokens) == ("vLLM 0.32.0", 32, 2048)


async def test_wiping_forgets_what_was_cached() -> None:
    async with engine(model="m") as fake, LoadClient(fake.url, "m", SystemClock()) as client:
        site = Environment((fake.url,), None, "m", Config())
        await client.complete(PROMPT, 1)
        assert await clear_caches(site, SystemClock()) is None
        again = await client.complete(PROMPT, 1)
    assert isinstance(again, ClientAnswer)
    assert again.cached_tokens == 0
    assert await clear_caches(site, SystemClock()) == f"{fake.url}/reset_prefix_cache: ConnectError"
