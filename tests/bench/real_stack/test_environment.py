"""Environments of benchmarks on one emulated engine: running stacks, facts about engines, empty caches.

That a stack is started when none runs is tested with the real one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from router.clock import SystemClock
from router.config.schema import Config
from router.config.sections.local_stack import LocalStackConfig
from router.errors import ConfigError
from router.lab.loadgen.client import ClientAnswer, LoadClient
from tests.bench.real_stack.environment import (
    BenchFailed,
    Environment,
    clear_caches,
    environment_factory,
    find_running_stack,
    is_ready,
    read_engine_facts,
)
from tests.fakes.engines import FakeEngine, engine

PROMPT = list(range(1000, 1100))


def described(fake: FakeEngine, **more: object) -> LocalStackConfig:
    port = urlsplit(fake.url).port
    return LocalStackConfig.model_validate(
        {"engines": 1, "first_port": port, "served_name": "m", "store": False} | more
    )


async def test_a_running_stack_is_found() -> None:
    async with engine(model="m") as fake:
        environment = await find_running_stack(Config(), described(fake))
    assert environment is not None
    assert (environment.engines, environment.master, environment.model) == ((fake.url,), None, "m")
    assert [instance.url for instance in environment.router_config.fleet.instances] == [fake.url]
    assert await find_running_stack(Config(), described(fake)) is None  # it has ended


async def test_a_stack_whose_master_is_silent_is_not_running() -> None:
    async with engine(model="m") as fake:
        assert await find_running_stack(Config(), described(fake)) is not None
        assert await find_running_stack(Config(), described(fake, store=True, master_http_port=1)) is None


async def test_the_facts_of_an_engine() -> None:
    async with engine(model="m", block_tokens=32, max_model_len=2048) as fake:
        facts = await read_engine_facts(Environment((fake.url,), None, "m", Config()))
        with pytest.raises(BenchFailed, match="does not report its facts"):
            await read_engine_facts(Environment((fake.url,), None, "another model", Config()))
    assert (facts.version, facts.block_tokens, facts.context_tokens) == ("vLLM 0.32.0", 32, 2048)


async def test_clearing_empties_the_caches() -> None:
    async with engine(model="m") as fake, LoadClient(fake.url, "m", SystemClock()) as client:
        environment = Environment((fake.url,), None, "m", Config())
        await client.complete(PROMPT, 1)
        assert await clear_caches(environment, SystemClock()) is None
        again = await client.complete(PROMPT, 1)
    assert isinstance(again, ClientAnswer)
    assert again.cached_tokens == 0
    assert await clear_caches(environment, SystemClock()) == f"{fake.url}/reset_prefix_cache: ConnectError"


def test_without_a_stack_section_there_is_nothing_to_measure(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="stack: is needed"):
        environment_factory(Config(), tmp_path, print)


async def test_a_stack_that_runs_is_measured_as_it_is(tmp_path: Path) -> None:
    lines: list[str] = []
    async with engine(model="m") as fake:
        section = {"engines": 1, "first_port": urlsplit(fake.url).port, "served_name": "m", "store": False}
        settings = Config.model_validate({"stack": section})
        async with environment_factory(settings, tmp_path, lines.append)(True) as environment:
            assert environment.engines == (fake.url,)
    assert lines == [f"measuring the stack that runs at {fake.url}"]


def telling(answer: Callable[[httpx.Request], httpx.Response]) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url="http://router", transport=httpx.MockTransport(answer))


@pytest.mark.parametrize(
    ("states", "ready"),
    [([], False), (["joining"], False), (["ready", "joining"], False), (["ready"], True), (["ready", "ready"], True)],
)
async def test_it_can_send_when_it_has_instances_and_all_are_ready(states: list[str], ready: bool) -> None:
    listing = {"instances": [{"state": state} for state in states]}
    async with telling(lambda _: httpx.Response(200, json=listing)) as http:
        assert await is_ready(http) is ready


async def test_one_that_does_not_answer_yet_is_not_ready() -> None:
    def refused(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    async with telling(refused) as http:
        assert not await is_ready(http)
    async with telling(lambda _: httpx.Response(503)) as http:
        assert not await is_ready(http)
