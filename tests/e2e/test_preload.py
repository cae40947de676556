"""Prefixes loaded ahead into an engine that joins a router under way, from the request to the hit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from router.fleet.instance import InstanceState
from router.lab.emulator.mooncake_master import MasterOptions, MooncakeMaster
from tests.e2e.chats import ask
from tests.e2e.conftest import Json, Router
from tests.fakes.engines import FakeEngine, engine, eventually
from tests.files import replace

PATH = "/v1/completions"
SYSTEM = {"role": "system", "content": " ".join(f"rule {n}" for n in range(300))}
ON = {"join": True, "join_tokens": 5000}


async def agents(router: Router, count: int, first: int = 0, **fields: Any) -> list[Any]:
    await eventually(router.polled)  # or the first prompts have no block keys
    return [
        await ask(router, [SYSTEM, {"role": "user", "content": f"agent {n} asks"}], **fields)
        for n in range(first, first + count)
    ]


async def join(router: Router, listed: Any, *fakes: FakeEngine) -> None:
    replace(listed, json.dumps([{"name": fake.server.options.name, "url": fake.url} for fake in fakes]))
    name = fakes[-1].server.options.name
    await eventually(lambda: getattr(router.core.fleet.get(name), "state", None) is InstanceState.READY)


async def warmed(router: Router, name: str = "new") -> Json:
    """The warm-up of an instance, when it has ended."""
    await eventually(lambda: router.app.features["preload"].warmup.states[name].end is not None)
    return next(one for one in (await preloads(router))["warmups"] if one["id"] == name)


async def preloads(router: Router) -> Json:
    return dict((await router.admin.get("/admin/preloads")).raise_for_status().json())


def loads(fake: FakeEngine) -> list[Any]:
    """The requests that loaded something there: the proof of its tokenizer may send others."""
    return [one for one in fake.seen(PATH) if b'"warmroute-preload' in one.body]


def prefix_of(sent: Json) -> list[int]:
    """The prefix that a request loaded: one more token lets a hybrid model re-use all of it."""
    ids: list[int] = sent["prompt"]
    assert ids[-1] == ids[-2]
    return ids[:-1]


def fleet(listed: Any) -> Json:
    listed.write_text("[]")
    return {"file": str(listed), "file_poll_s": 0.02}


async def test_a_new_engine_gets_what_sessions_share_before_it_is_asked(router: Any, tmp_path: Path) -> None:
    listed = tmp_path / "fleet.json"
    async with engine(name="old") as old, engine(name="new") as new, router(fleet=fleet(listed), preload=ON) as r:
        await join(r, listed, old)
        await agents(r, 4)
        await join(r, listed, old, new)
        warmup = await warmed(r)
        (sent,) = [json.loads(one.body) for one in loads(new)]
        assert (sent["user"], sent["max_tokens"]) == ("warmroute-preload", 1)
        assert sent["request_id"].startswith("warmroute-preload-join-")
        tokens = len(prefix_of(sent))
        assert tokens >= 512
        assert (warmup["end"], warmup["planned"], warmup["loaded"], warmup["tokens"]) == ("done", 1, 1, tokens)
        assert r.booked == 0
        assert r.core.fleet.get("new").targets[0].latency_model.speed(r.app.core.clock.now()).samples == 1

        await r.admin.post("/admin/instances/old/drain")
        await eventually(lambda: r._heard(new))
        (said,) = await agents(r, 1, first=100)
        record = await r.record(said.record)
        assert (said.instance, record["preloaded_tokens"]) == ("new", tokens)
        assert record["attempts"][0]["predicted_tokens"] == record["cached_tokens"]  # its events told of it
        (said,) = await agents(r, 1, first=101)
        assert (await r.record(said.record))["preloaded_tokens"] is None  # the first one would have brought it
        told = await preloads(r)
        assert told["settled_tokens"] == {"join": {"hit": tokens}}
        (prefix,) = told["prefixes"]
        assert (prefix["target"], prefix["computed_tokens"], prefix["hit_tokens"]) == ("new/0", tokens, tokens)
        assert await r.metric("warmroute_preload_tokens_total", reason="join", source="computed") == tokens
        assert await r.metric("warmroute_preload_settled_tokens_total", outcome="hit") == tokens
        assert await r.metric("warmroute_preload_requests_total", end="loaded") == 1


async def test_what_the_pool_has_is_not_computed_again(router: Any, tmp_path: Path) -> None:
    listed = tmp_path / "fleet.json"
    async with MooncakeMaster(MasterOptions()) as master:
        pooled = {"pool_url": master.url, "model": "warm-tiny"}
        async with engine(name="old", **pooled) as old, engine(name="new", **pooled) as new:
            options = {"pool": {"masters": [master.url], "deadline_ms": 5000, "ttl_ms": 20}}
            policy = {"warm": {"scorers": [{"name": "warm"}], "picker": {"name": "best"}}}
            async with router(fleet=fleet(listed), preload=ON, policies=policy, **options) as r:
                await join(r, listed, old)
                await agents(r, 4)
                await eventually(lambda: old.saving == 0)
                await join(r, listed, old, new)
                assert (await warmed(r))["loaded"] == 1
                (prefix,) = (await preloads(r))["prefixes"]
                assert prefix["pool_tokens"] > 0.9 * prefix["tokens"]  # all but the last block
                assert prefix["computed_tokens"] + prefix["pool_tokens"] == prefix["tokens"]


async def test_ranks_and_adapters(router: Any, tmp_path: Path) -> None:
    listed = tmp_path / "fleet.json"
    lora: dict[str, Any] = {"loras": ("poet",)}
    async with (
        engine(name="old", **lora) as old,
        engine(name="new", ranks=2, **lora) as new,
        router(fleet=fleet(listed), preload=ON) as r,
    ):
        await join(r, listed, old)
        await agents(r, 4)
        await agents(r, 2, model="poet")
        await join(r, listed, old, new)
        assert (await warmed(r))["loaded"] == 3
        asked = loads(new)
        models = [json.loads(one.body)["model"] for one in asked]
        ranks = [one.headers["x-data-parallel-rank"] for one in asked]
        # 4 sessions: 2 are expected at the first rank, 1.3 at the second, which has 2 holders beside; 2 of the
        # adapter: 1 at the first, too few for the second.
        assert sorted(zip(models, ranks, strict=True)) == [("poet", "0"), ("warm-tiny", "0"), ("warm-tiny", "1")]
        await r.admin.post("/admin/instances/old/drain")
        (said,) = await agents(r, 1, first=100, model="poet")
        record = await r.record(said.record)
        assert said.target == "new/0"
        assert record["preloaded_tokens"] == len(prefix_of(json.loads(asked[models.index("poet")].body)))


async def test_the_work_is_booked_while_it_is_done_and_ends_in_time(router: Any, tmp_path: Path) -> None:
    listed = tmp_path / "fleet.json"
    async with (
        engine(name="old") as old,
        engine(name="slow", prefill_tokens_per_s=400) as slow,
        router(fleet=fleet(listed), preload=ON | {"join_s": 0.5}) as r,
    ):
        await join(r, listed, old)
        await agents(r, 3)
        await join(r, listed, old, slow)
        await eventually(lambda: r.core.fleet.get("slow").requests == 1)
        target = r.core.fleet.get("slow").targets[0]
        assert target.load_book.prefill_tokens >= 512
        assert (await r.instances())["slow"]["warming"]
        assert (await warmed(r, "slow"))["end"] == "failed"  # no answer within a second
        assert r.booked == 0
        assert not (await r.instances())["slow"]["warming"]
        assert await r.metric("warmroute_preload_requests_total", end="failed") == 1


@pytest.mark.parametrize("preload", [{}, ON | {"join_tokens": 10}])
async def test_off_or_without_room_nothing_is_sent(router: Any, tmp_path: Path, preload: Json) -> None:
    listed = tmp_path / "fleet.json"
    async with (
        engine(name="old") as old,
        engine(name="new") as new,
        router(fleet=fleet(listed), preload=preload) as r,
    ):
        await join(r, listed, old)
        await agents(r, 3)
        assert ("preload" in r.app.features) == bool(preload)
        if preload:
            assert len(r.app.features["preload"].traffic.prompts) > 0
        await join(r, listed, old, new)
        if preload:
            assert (await warmed(r))["end"] == "done"
        assert loads(new) == []
