"""A pool under the fleet: what only the pool holds is foretold and delivered, and a pool in trouble costs nobody.

The pool is an emulated master that emulated engines share. One engine stands beside the fleet: the router hears nothing
of it, so what it has computed is known to the pool alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest

from router.lab.emulator.mooncake_master import MasterFaults, MasterOptions, MooncakeMaster
from tests.e2e.chats import PATH, Chat, Said, ask, chats
from tests.e2e.conftest import MODEL, Json, Router
from tests.fakes.engines import FakeEngine, engine, eventually
from tests.patience import PATIENCE_S

SOONEST = {"scorers": [{"name": "expected_ttft"}], "picker": {"name": "best"}}
PATIENT = {"deadline_ms": 5000, "ttl_ms": 20}  # a busy machine is not a silent pool, whose health is polled within 1 s
FAST_LINK = {"pool": {"base_ms": 0.1, "us_per_token": 0.1}}


class Fleet:
    """A router in front of engines that share a pool, and `beside`, which shares it, too."""

    def __init__(self, router: Router, master: MooncakeMaster, lives: dict[FakeEngine, AsyncExitStack]) -> None:
        self.router = router
        self.master = master
        self.beside, *self.fakes = lives
        self._lives = lives

    async def pooled_only(self, words: str) -> list[Json]:
        """A chat whose prompt the pool holds, and nobody in the fleet."""
        messages = [{"role": "user", "content": words}]
        async with httpx.AsyncClient(base_url=self.beside.url, timeout=PATIENCE_S) as http:
            body = {"model": MODEL, "messages": messages, "max_tokens": 1}
            told = (await http.post(PATH, json=body)).raise_for_status().json()
        await self.saved()
        assert told["usage"]["prompt_tokens"] > 32
        return messages

    async def saved(self) -> None:
        """What was computed of prompts is in the pool."""
        await eventually(lambda: not any(one.saving for one in [*self.fakes, self.beside]))

    async def settled(self) -> None:
        await self.saved()
        await self.router.hear()

    async def kill(self, instance: str) -> None:
        """Its connections are cut, and its cache is gone."""
        fake = next(fake for fake in self.fakes if fake.address == instance)
        self.fakes.remove(fake)
        self.router.engines = self.fakes
        await self._lives[fake].aclose()

    def external(self) -> int:
        return sum(fake.gauges().external_hit_tokens for fake in self.fakes)

    async def pool_of(self, said: Said) -> int | None:
        """What the pool was seen to hold beyond the target's own."""
        assert said.ok, said
        tokens: int | None = (await self.router.record(said.record))["attempts"][-1]["pool_tokens"]
        return tokens


@asynccontextmanager
async def fleet(
    router: Any, count: int = 2, master: MooncakeMaster | None = None, **options: Any
) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        if master is None:
            master = await stack.enter_async_context(MooncakeMaster(MasterOptions()))
        lives = {}
        for _ in range(1 + count):
            life = await stack.enter_async_context(AsyncExitStack())
            lives[await life.enter_async_context(engine(pool_url=master.url, **options))] = life
        _, *fakes = lives
        section = {"instances": [{"url": fake.url} for fake in fakes], "speed_prior": FAST_LINK}
        pool = {"masters": [master.url], **PATIENT}
        running = await stack.enter_async_context(router(fakes, pool=pool, policies={"warm": SOONEST}, fleet=section))
        made = Fleet(running, master, lives)
        assert (await Chat(running, "the first block tells how engines hash").turn()).ok
        await made.settled()
        yield made


async def test_what_only_the_pool_holds_is_foretold_and_delivered(router: Any) -> None:
    async with fleet(router) as f:
        for number in range(12):
            messages = await f.pooled_only(f"chapter {number} " * (8 + number))  # every length modulo a block
            before = f.external()
            said = await ask(f.router, messages, stream=number % 2 == 1)
            predicted = await f.pool_of(said)
            assert predicted == f.external() - before
            assert predicted is not None
            assert predicted >= 32
            record = await f.router.record(said.record)
            assert (record["cached_tokens"], record["attempts"][0]["predicted_tokens"]) == (predicted, 0)
            await f.settled()


async def test_only_what_lies_beyond_the_targets_own_is_foretold(router: Any) -> None:
    async with fleet(router, count=1) as f:
        (short,) = await f.pooled_only("once upon a time " * 10)
        assert (await ask(f.router, [short])).ok
        await f.settled()
        (long,) = await f.pooled_only(short["content"] + "and many times after that " * 20)
        before = f.external()
        said = await ask(f.router, [long])
        record = await f.router.record(said.record)
        own, pooled = record["attempts"][0]["predicted_tokens"], record["attempts"][0]["pool_tokens"]
        assert own > 0
        assert pooled == f.external() - before > 0
        assert record["cached_tokens"] == own + pooled


async def test_trust_is_not_lost_over_what_came_from_the_pool(router: Any) -> None:
    async with fleet(router) as f:
        for chat in chats(f.router, "talk", 6):
            for _ in range(3):
                assert (await chat.turn()).ok
                await f.settled()
        targets = [target for instance in f.router.core.fleet for target in instance.targets.values()]
        assert all(target.overlap_accuracy.trusted and not target.overlap_accuracy.overestimated for target in targets)


async def test_a_pool_that_says_nothing_of_an_evicted_prompt(router: Any) -> None:
    async with fleet(router) as f:
        messages = await f.pooled_only("here today, gone tomorrow " * 10)
        f.master.keys.clear()
        said = await ask(f.router, messages)
        assert await f.pool_of(said) == 0
        assert f.external() == 0


@pytest.mark.parametrize("fault", [{"silent": True}, {"standby": True}, {"error": True}])
async def test_a_pool_in_trouble_is_unknown_and_comes_back(router: Any, fault: dict[str, bool]) -> None:
    async with fleet(router, pool_timeout_s=3.0) as f:
        for number in range(2):
            messages = await f.pooled_only(f"storm {number} over the pool " * 10)
            f.master.faults = MasterFaults(**fault)
            await leader(f, None)
            said = await ask(f.router, messages)
            assert await f.pool_of(said) is None
            f.master.faults = MasterFaults()
            await leader(f, f.master.url)
            messages = await f.pooled_only(f"calm {number} over the pool " * 10)
            before = f.external()
            said = await ask(f.router, messages)
            assert await f.pool_of(said) == f.external() - before > 0
            await f.settled()


async def leader(f: Fleet, wanted: str | None) -> None:
    """Until the router knows who leads: what its requests would be told."""
    name = None if wanted is None else f"mooncake master {wanted.removeprefix('http://')}"
    await eventually(lambda: f.router.app.features["pool"].store.report().leader == name)


async def test_a_master_that_is_killed_and_comes_back_empty(router: Any) -> None:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(AsyncExitStack())
        master = await first.enter_async_context(MooncakeMaster(MasterOptions()))
        f = await stack.enter_async_context(fleet(router, master=master))
        lost = await f.pooled_only("it was written in the sand " * 10)
        await first.aclose()
        await leader(f, None)
        for chat in chats(f.router, "without", 4):
            said = await chat.turn()
            assert await f.pool_of(said) is None
        assert f.external() == 0
        f.master = await stack.enter_async_context(MooncakeMaster(MasterOptions(port=master.port)))
        await leader(f, master.url)
        assert await f.pool_of(await ask(f.router, lost)) == 0
        await f.settled()
        messages = await f.pooled_only("it was written in stone " * 10)
        before = f.external()
        assert await f.pool_of(await ask(f.router, messages)) == f.external() - before > 0


async def test_a_killed_instances_chats_go_on_elsewhere_from_the_pool(router: Any) -> None:
    async with fleet(router, count=3) as f:
        talks = chats(f.router, "heir", 6)
        homes = [(await chat.turn()).instance for chat in talks]
        await f.settled()
        await f.kill(homes[0])
        for chat, home in zip(talks, homes, strict=True):
            before = f.external()
            said = await chat.turn(stream=True)
            record = await f.router.record(said.record)
            assert said.ok
            if home == homes[0]:
                assert said.instance != home
                assert record["attempts"][-1]["predicted_tokens"] == 0
                assert record["cached_tokens"] == f.external() - before > 100
            assert record["attempts"][-1]["pool_tokens"] == f.external() - before
            await f.settled()
