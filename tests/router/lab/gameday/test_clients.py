"""The clients of a game day: the same for the same seed, and those that leave really do, at a real engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from itertools import islice
from typing import Any

import pytest

from router.clock import SystemClock
from router.config.sections.gameday import GamedayFile
from router.lab.gameday.clients import GamedayClients, LoadEndpoint, examine_endpoint, make_sessions
from router.lab.loadgen.load import SentRequest
from router.lab.workloads.model import Session, Span
from tests.fakes.engines import INSTANT, FakeEngine, engine, eventually
from tests.patience import PATIENCE_S

CLOCK = SystemClock()
PATH = "/v1/chat/completions"
LOAD = {"agents": 2, "turns": 3, "think_s": 0.05}


def script(**fields: Any) -> GamedayFile:
    day = {"about": "x", "calm_from_s": 0.1, "ends_s": 1.0, "load": LOAD}
    return GamedayFile.model_validate(day | {"faults": [{"fault": "kill", "at_s": 0.5}]} | fields)


def clients(url: str, keys: tuple[str | None, ...] = (None,), **fields: Any) -> GamedayClients:
    return GamedayClients(script(**fields), LoadEndpoint(url, "warm-tiny", keys), CLOCK, CLOCK.now())


def sessions(seed: int) -> list[Session]:
    return list(islice(make_sessions(script(seed=seed)), 10))


def test_sessions_share_the_system_prompt_and_each_turn_continues_the_one_before() -> None:
    one, two = islice(make_sessions(script()), 2)
    assert one.turns[0].fresh[0] == two.turns[0].fresh[0] == Span(0, 400)
    assert one.turns[0].fresh[1] != two.turns[0].fresh[1]
    assert [turn.context_tokens for turn in one.turns] == [0, 1216, 1382]  # 400 + 800 + 16, then + 150 + 16
    assert all(0 <= turn.think_s <= 0.1 for turn in one.turns)


def test_the_same_seed_gives_the_same_sessions_and_another_others() -> None:
    assert sessions(3) == sessions(3)
    assert sessions(3) != sessions(4)


def test_after_a_number_of_sessions_the_first_comes_again() -> None:
    day = script(load=LOAD | {"sessions": 4})
    found = list(islice(make_sessions(day), 9))
    assert found[:4] == list(islice(make_sessions(script()), 4))
    assert found[4:] == [*found[:4], found[0]]


async def test_the_load_ends_by_itself() -> None:
    async with engine(**INSTANT) as fake:
        rows: list[SentRequest] = []
        await clients(fake.url).run_load(3.0, rows.append)
        assert len(rows) > 5
        assert [one.failure for one in rows if one.failure] == []
        assert max(one.turn for one in rows) == 2


async def test_tenants_share_the_agents_each_with_its_key() -> None:
    async with engine(**INSTANT) as fake:
        own = clients(fake.url, keys=("a", "b", "c"), load={"agents": 4, "think_s": 0.01})
        async with running(own.run_load(PATIENCE_S, lambda _: None)):
            await eventually(lambda: keys_of(fake) == {"Bearer a", "Bearer b", "Bearer c"})


def keys_of(fake: FakeEngine) -> set[str]:
    return {exchange.headers["authorization"] for exchange in fake.seen(PATH)}


@asynccontextmanager
async def running(load: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Cancels the load at the end."""
    task = asyncio.create_task(load)
    yield
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_single_requests_are_answered_whole_and_a_refusal_is_a_failure() -> None:
    async with engine(**INSTANT) as fake:
        rows: list[SentRequest] = []
        own = clients(fake.url, load={"singles": 2, "think_s": 0.01})
        async with running(own.run_singles(PATIENCE_S, rows.append)):
            await eventually(lambda: len(rows) > 4)
            assert {(one.failure, one.output_tokens, one.planned_output_tokens) for one in rows} == {(None, 4, 4)}
            fake.faults(error_rate=1.0)
            await eventually(lambda: rows[-1].status == 500)
            assert (rows[-1].failure or "").startswith('{"error"')


async def test_a_flood_is_one_prompt_by_many_at_once() -> None:
    async with engine(**INSTANT) as fake:
        sent = await clients(fake.url).run_flood(4, 200, 2.0)
        assert len(sent) >= 4
        assert len({exchange.body for exchange in fake.seen(PATH)}) == 1


async def test_clients_that_hang_up_leave_nothing_running() -> None:
    async with engine(decode_ms_per_token=100) as fake:
        left = await clients(fake.url).run_hang_ups(3, 0.3)
        assert left >= 3
        assert fake.seen(PATH)
        await eventually(lambda: fake.server.app._generate.in_flight == 0)


@pytest.mark.parametrize("suffix", ["", "/v1", "/"])
async def test_somebodys_endpoint_is_asked_for_its_model_and_the_length_of_words(suffix: str) -> None:
    async with engine(**INSTANT) as fake:
        endpoint = await examine_endpoint(fake.url + suffix, None, None, CLOCK)
        assert (endpoint.url, endpoint.model) == (fake.url, "warm-tiny")
        assert endpoint.tokens_per_word > 0
