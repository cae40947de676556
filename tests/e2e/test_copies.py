"""A prefix that takes more requests than its one holder can bear gets copies, and one that cools gets none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from router.features.preload import copies
from router.kvcache.events import Key
from tests.e2e.chats import ask
from tests.e2e.conftest import Router
from tests.e2e.test_handoff import drain, named
from tests.e2e.test_preload import PATH, agents, prefix_of, preloads
from tests.fakes.engines import engine, eventually

ON = {"copies": True, "share": 1.0}


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """No rounds but those of the test."""
    monkeypatch.setattr(copies, "INTERVAL_S", 3600.0)


async def make_copies(router: Router) -> None:
    """One round, as there is one every second."""
    await eventually(lambda: router.app.features["preload"].preloader.saved_ms > 0)
    await router.app.features["preload"].copies.make_copies()


def key_of(router: Router, ids: list[int]) -> Key:
    kept = router.app.features["preload"].traffic.prompts.by_prefix()
    return next(key for key, prompt in kept.items() if prompt.cut(1 << prompt.prefixes.index(key)).ids.tolist() == ids)


@pytest.mark.usefixtures("by_hand")
async def test_a_hot_prefix_gets_holders_until_their_share_is_its_share(router: Any) -> None:
    async with (
        engine(name="a") as a,
        engine(name="b") as b,
        engine(name="c") as c,
        router(named(a, b, c), preload=ON) as r,
    ):
        said = await agents(r, 8)
        (holder,) = {one.instance for one in said}  # the policy stays with it
        others = [one for one in (a, b, c) if one.server.options.name != holder]
        work = r.core.fleet.get(holder).targets[0].book(10, 10)  # its answers stream
        work.on_first_byte()
        await make_copies(r)
        (sent,) = [json.loads(one.body) for fake in others for one in fake.seen(PATH)]
        assert sent["request_id"].startswith("warmroute-preload-copy-")
        tokens, key = len(prefix_of(sent)), key_of(r, prefix_of(sent))
        await eventually(lambda: len(r.core.indexer.holders(key)[0]) == 2)  # by the engine's events
        await make_copies(r)
        await eventually(lambda: len(r.core.indexer.holders(key)[0]) == 3)
        await make_copies(r)
        told = await preloads(r)
        assert told["loaded_tokens"] == {"copy": {"computed": 2 * tokens, "pool": 0}}
        assert {one["target"] for one in told["prefixes"]} == {f"{one.server.options.name}/0" for one in others}
        work.release()
        assert r.booked == 0

        await drain(r, holder)
        (answer,) = await agents(r, 1, first=100)
        assert (await r.record(answer.record))["preloaded_tokens"] == tokens
        assert (await preloads(r))["settled_tokens"] == {"copy": {"hit": tokens}}


@pytest.mark.usefixtures("by_hand")
async def test_one_that_cools_gets_no_more(router: Any) -> None:
    async with (
        engine(name="a") as a,
        engine(name="b") as b,
        engine(name="c") as c,
        router(named(a, b, c), preload=ON) as r,
    ):
        (holder,) = {one.instance for one in await agents(r, 8)}
        work = r.core.fleet.get(holder).targets[0].book(10, 10)
        for n in range(20):  # other prompts: one holder of three bears 8 of 28 requests
            await ask(r, [{"role": "user", "content": f"{n} alone " + " ".join(f"word {n} {i}" for i in range(60))}])
        await make_copies(r)
        assert (await preloads(r))["prefixes"] == []
        work.release()


async def test_rounds_go_on_where_it_is_switched_on(router: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "INTERVAL_S", 0.05)
    async with engine(name="a") as a, engine(name="b") as b, router(named(a, b), preload=ON) as r:
        (holder,) = {one.instance for one in await agents(r, 8)}
        work = r.core.fleet.get(holder).targets[0].book(10, 10)
        await eventually(lambda: len(a.seen(PATH)) + len(b.seen(PATH)) == 1)
        work.release()
    async with engine(name="a") as a, router(named(a), preload={"drain": True}) as r:
        assert r.app.features["preload"].copies is None
