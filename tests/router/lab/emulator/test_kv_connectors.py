"""Emulated engines around one pool, and in pairs, over real sockets. Blocks of 16 tokens; steps take no time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import zmq
import zmq.asyncio

from router.backends.vllm import disaggregation, metrics
from router.backends.vllm.kv_events import decode
from router.features.pool.keys import parse_key
from router.kvcache.events import BlocksPooled, BlocksStored, Event, EventBatch
from router.lab.emulator.mooncake_master import MasterFaults, MasterOptions, MooncakeMaster
from router.lab.simulator.engine_types import SequenceRequest
from tests.fakes.engines import FakeEngine, engine, eventually
from tests.paths import DATA

MODEL = "warm-tiny"
PROMPT = list(range(40))  # two full blocks
PATH = "/v1/completions"
REAL_PAGE = DATA / "vllm-0.32-metrics.txt"


async def complete(fake: FakeEngine, prompt: list[int] = PROMPT, **more: Any) -> dict[str, Any]:
    answer = await post(fake, prompt, **more)
    assert answer.status_code == 200, answer.text
    read: dict[str, Any] = answer.json()
    return read


async def post(fake: FakeEngine, prompt: list[int] = PROMPT, **more: Any) -> httpx.Response:
    async with httpx.AsyncClient(base_url=fake.url) as http:
        return await http.post(PATH, json={"model": MODEL, "prompt": prompt, "max_tokens": 1} | more)


def cached(answer: dict[str, Any]) -> int:
    count: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count


def external(fake: FakeEngine) -> tuple[int, int]:
    return fake.gauges().external_queried_tokens, fake.gauges().external_hit_tokens


@pytest.fixture
async def master() -> AsyncIterator[MooncakeMaster]:
    async with MooncakeMaster(MasterOptions()) as master:
        yield master


@asynccontextmanager
async def two(master: MooncakeMaster, **options: Any) -> AsyncIterator[tuple[FakeEngine, FakeEngine]]:
    async with engine(pool_url=master.url, **options) as a, engine(pool_url=master.url, **options) as b:
        yield a, b


# -- the pool


async def test_what_one_computed_the_other_loads(master: MooncakeMaster) -> None:
    async with two(master) as (a, b):
        assert cached(await complete(a)) == 0
        await eventually(lambda: len(master.keys) == 2)
        keys = [parse_key(key) for key in master.keys]
        digests = a.server.cores.all[0].engine.digests(SequenceRequest(PROMPT, 1))
        assert [(key.model, key.tp_rank, key.group, key.digest) for key in keys if key] == [
            (MODEL, 0, 0, digest) for digest in digests
        ]
        assert cached(await complete(b)) == 32
        assert (external(a), external(b)) == ((40, 0), (40, 32))
        assert cached(await complete(b)) == 32  # its own now
        assert (b.gauges().hit_tokens, external(b)) == (32, (48, 32))
        assert all(len(asked) == 2 for asked in master.queries)


async def test_of_a_prompt_that_is_there_to_the_end_one_block_less_is_loaded(master: MooncakeMaster) -> None:
    async with two(master) as (a, b):
        await complete(a, PROMPT[:32])
        await eventually(lambda: len(master.keys) == 2)
        assert cached(await complete(b, PROMPT[:32])) == 16


async def test_a_hole_ends_what_can_be_loaded(master: MooncakeMaster) -> None:
    async with two(master) as (a, b):
        await complete(a, list(range(70)))
        await eventually(lambda: len(master.keys) == 4)
        del master.keys[list(master.keys)[1]]
        assert cached(await complete(b, list(range(70)))) == 16
        await eventually(lambda: len(master.keys) == 4)  # b computed the rest, and saved what was missing


async def test_every_engine_has_the_same_names_only_for_the_same_blocks(master: MooncakeMaster) -> None:
    async with engine(pool_url=master.url) as a, engine(pool_url=master.url, pool_model="other") as b:
        await complete(a)
        await eventually(lambda: len(master.keys) == 2)
        for other in ({"cache_salt": "tenant"}, {"prompt": [1, *PROMPT[1:]]}):
            assert cached(await complete(a, **other)) == 0
        assert cached(await complete(b)) == 0
        await eventually(lambda: sum(key.startswith("other@") for key in master.keys) == 2)


async def test_decode_engines_load_and_save_nothing(master: MooncakeMaster) -> None:
    async with engine(pool_url=master.url) as a, engine(pool_url=master.url, role="decode") as b:
        await complete(b)
        await complete(a)
        await eventually(lambda: len(master.keys) == 2)
        await complete(a, PROMPT[::-1])
        await eventually(lambda: len(master.keys) == 4)
        assert cached(await complete(b, PROMPT[::-1])) == 32


@pytest.mark.parametrize("fault", [{"error": True}, {"standby": True}, {"silent": True}])
async def test_a_pool_in_trouble_holds_nothing_and_fails_nobody(master: MooncakeMaster, fault: dict[str, bool]) -> None:
    async with two(master, pool_timeout_s=0.05) as (a, b):
        await complete(a)
        await eventually(lambda: len(master.keys) == 2)
        master.faults = MasterFaults(**fault)
        assert cached(await complete(b)) == 0
        assert external(b) == (40, 0)
        master.faults = MasterFaults()
        await complete(a, PROMPT[::-1])
        await eventually(lambda: len(master.keys) == 4)
        assert cached(await complete(b, PROMPT[::-1])) == 32


async def test_a_pool_that_is_gone_fails_nobody() -> None:
    async with MooncakeMaster(MasterOptions()) as master:
        url = master.url
    async with engine(pool_url=url) as fake:
        assert cached(await complete(fake)) == 0
        assert external(fake) == (40, 0)


async def test_the_page_tells_of_loads_as_the_real_one(master: MooncakeMaster) -> None:
    real = {name(line) for line in REAL_PAGE.read_text().splitlines() if line.startswith("vllm:")}
    async with two(master, load_tokens_per_s=4000.0, load_base_ms=2.0) as (a, b), httpx.AsyncClient() as http:
        for fake in (a, b):
            await complete(fake)
            await eventually(lambda: len(master.keys) == 2)
        pages = [(await http.get(fake.url + "/metrics")).content for fake in (a, b)]
    lines = [line for page in pages for line in page.decode().splitlines() if line.startswith("vllm:")]
    assert {name(line) for line in lines} <= real
    first, second = (metrics.read_gauges(page)[0].pool_loads for page in pages)
    assert first is None
    assert second is not None
    assert second == (1, 2, pytest.approx(0.010))  # 2 ms + 32 tokens at 4 per ms
    for line in (
        'external_prefix_cache_hits_total{engine="0",model_name="warm-tiny"} 32.0',
        'prompt_tokens_by_source_total{engine="0",model_name="warm-tiny",source="local_compute"} 8.0',
        'prompt_tokens_by_source_total{engine="0",model_name="warm-tiny",source="external_kv_transfer"} 32.0',
        'prompt_tokens_cached_total{engine="0",model_name="warm-tiny"} 32.0',
    ):
        assert f"vllm:{line}".encode() in pages[1]


def name(line: str) -> tuple[str, frozenset[str]]:
    """A line's metric, and its labels: the real page has more engines' worth of settings in some."""
    labels = frozenset(
        pair.split("=")[0] for pair in line.partition("{")[2].rpartition("}")[0].split(",") if "=" in pair
    )
    return line.split("{")[0], labels if "cache_config" not in line else frozenset()


async def test_the_saving_engine_alone_announces_blocks_one_by_one_in_a_later_batch(master: MooncakeMaster) -> None:
    async with two(master) as (a, b), heard(a) as from_a, heard(b) as from_b:
        await complete(a)
        stored, saved = await from_a.batch(), await from_a.batch()
        (store,) = stored
        assert isinstance(store, BlocksStored)
        assert [(type(event), list(event.token_ids)) for event in saved if isinstance(event, BlocksPooled)] == [
            (BlocksPooled, PROMPT[:16]),
            (BlocksPooled, PROMPT[16:32]),
        ]
        assert [hash for event in saved if isinstance(event, BlocksPooled) for hash in event.hashes] == store.hashes
        await complete(b)
        assert [type(event) for event in await from_b.batch()] == [BlocksStored]
        await complete(b, [*PROMPT[:32], *range(100, 116), 7])  # one block more, which b saves
        assert [type(event) for event in await from_b.batch()] == [BlocksStored]
        (last,) = await from_b.batch()
        assert isinstance(last, BlocksPooled)
        assert (last.parent, list(last.token_ids)) == (store.hashes[1], list(range(100, 116)))


class Ear:
    def __init__(self, socket: zmq.asyncio.Socket) -> None:
        self._socket = socket

    async def batch(self) -> list[Event]:
        assert await self._socket.poll(5000), "no event came"
        batch = decode(await self._socket.recv_multipart())
        assert isinstance(batch, EventBatch)
        return batch.events


@asynccontextmanager
async def heard(fake: FakeEngine) -> AsyncIterator[Ear]:
    """Everything that the engine announces from now on."""
    context: zmq.Context[Any] = zmq.Context()
    socket = zmq.asyncio.Socket(context, zmq.SUB)
    socket.connect(fake.sources()["0"]["endpoint"])
    socket.subscribe("")
    try:
        prompt = 5000
        while not await socket.poll(10):
            prompt += 1
            await complete(fake, [prompt] * 17)
        while await socket.poll(30):
            await socket.recv_multipart()
        yield Ear(socket)
    finally:
        socket.close(linger=0)
        context.term()


# -- pairs, Mooncake


@asynccontextmanager
async def pair(transfer: str, **options: Any) -> AsyncIterator[tuple[FakeEngine, FakeEngine]]:
    both = {"transfer": transfer} | options
    async with engine(role="prefill", **both) as p, engine(role="decode", **both) as d:
        yield p, d


async def engine_id(p: FakeEngine) -> str:
    async with httpx.AsyncClient() as http:
        ids = disaggregation.read_engine_ids((await http.get(f"{p.bootstrap_url}/query")).content)
    assert ids is not None
    return ids[0]


def to_prefill(transfer_id: str = "xfer-1") -> dict[str, Any]:
    return {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer_id}


async def to_decode(p: FakeEngine, transfer_id: str = "xfer-1") -> dict[str, Any]:
    return {
        "do_remote_decode": False,
        "do_remote_prefill": True,
        "remote_bootstrap_addr": p.bootstrap_url,
        "remote_engine_id": await engine_id(p),
        "transfer_id": transfer_id,
    }


@pytest.mark.parametrize("first", ["prefill", "decode"])
async def test_mooncake_halves_meet_whichever_comes_first(first: str) -> None:
    async with engine() as alone, pair("mooncake") as (p, d):
        expected = (await complete(alone, max_tokens=5))["choices"][0]["text"]
        prefill = post(p, kv_transfer_params=to_prefill())
        decode = post(d, max_tokens=5, kv_transfer_params=await to_decode(p))
        if first == "prefill":
            prefilled = (await prefill).json()
            assert p.gauges().kv_usage > 0
            decoded = (await decode).json()
        else:
            waiting = asyncio.create_task(decode)
            await eventually(lambda: d.gauges().loading == 1)
            prefilled, decoded = (await prefill).json(), (await waiting).json()
        assert prefilled["kv_transfer_params"] is None
        assert prefilled["choices"][0]["finish_reason"] == "length"
        assert decoded["choices"][0]["text"] == expected
        assert cached(decoded) == 40  # all of it came; the last token is computed all the same
        assert external(d) == (40, 40)
        assert d.gauges().cached_blocks == 2
        await eventually(lambda: p.gauges().kv_usage == 0)


async def test_a_bootstrap_server_tells_every_rank_and_new_ids_after_a_restart() -> None:
    async with pair("mooncake", ranks=2) as (p, d), httpx.AsyncClient() as http:
        assert d.bootstrap_url is None
        told = (await http.get(f"{p.bootstrap_url}/query")).json()
        assert set(told) == {"0", "1"}
        assert told["0"]["worker_addr"]["0"]["0"].startswith("tcp://127.0.0.1:")
        before = await engine_id(p)
        assert before == await engine_id(p)
        p.restart()
        assert await engine_id(p) != before


@pytest.mark.parametrize("missing", ["remote_engine_id", "remote_bootstrap_addr", "transfer_id"])
async def test_a_decode_half_without_an_address_computes_all_itself(missing: str) -> None:
    async with pair("mooncake") as (p, d):
        params = await to_decode(p)
        del params[missing]
        assert cached(await complete(d, kv_transfer_params=params)) == 0


@pytest.mark.parametrize("policy", ["fail", "recompute"])
@pytest.mark.parametrize("trouble", ["wrong engine id", "peer never comes", "peer stopped early", "nobody listens"])
async def test_kv_that_does_not_come(trouble: str, policy: str) -> None:
    async with pair("mooncake", kv_load_failure_policy=policy, transfer_timeout_s=0.1) as (p, d):
        params = await to_decode(p)
        if trouble == "wrong engine id":
            params["remote_engine_id"] = "somebody"
        if trouble == "peer stopped early":
            await complete(p, kv_transfer_params=to_prefill(), max_tokens=99)
        if trouble == "nobody listens":
            params["remote_bootstrap_addr"] = "http://127.0.0.1:9"
        answer = await post(d, kv_transfer_params=params)
        assert p.gauges().kv_usage == 0
        assert d.gauges().kv_usage == 0
        if policy == "recompute":
            assert (answer.status_code, cached(answer.json())) == (200, 0)
        else:
            assert answer.status_code == 500
            assert answer.json()["error"]["message"] == "Internal server error"


async def test_a_stream_that_gets_no_kv_has_begun_already() -> None:
    async with pair("mooncake", transfer_timeout_s=0.05) as (p, d):
        answer = await post(d, stream=True, kv_transfer_params=await to_decode(p))
        assert answer.status_code == 200
        assert '"code": 500' in answer.text
        assert answer.text.endswith("data: [DONE]\n\n")


async def test_what_nobody_fetches_is_freed_in_time() -> None:
    async with pair("mooncake", lease_s=0.05) as (p, _):
        await complete(p, kv_transfer_params=to_prefill())
        assert p.gauges().kv_usage > 0
        await eventually(lambda: p.gauges().kv_usage == 0)


async def test_what_was_fetched_is_gone() -> None:
    async with pair("mooncake", transfer_timeout_s=0.05) as (p, d):
        await complete(p, kv_transfer_params=to_prefill())
        assert cached(await complete(d, kv_transfer_params=await to_decode(p))) == 40
        assert (await post(d, [1, *PROMPT], kv_transfer_params=await to_decode(p))).status_code == 500


async def test_a_client_that_goes_ends_the_waiting() -> None:
    async with pair("mooncake", transfer_timeout_s=30) as (p, d):
        waiting = asyncio.create_task(post(d, kv_transfer_params=await to_decode(p)))
        await eventually(lambda: d.gauges().loading == 1)
        waiting.cancel()
        await eventually(lambda: d.gauges().waiting == 0)
        assert d.gauges().kv_usage == 0


@pytest.mark.parametrize(("role", "asked"), [("prefill", "do_remote_prefill"), ("decode", "do_remote_decode")])
async def test_the_wrong_half_breaks_an_engine(role: str, asked: str) -> None:
    """Trap 36: the scheduler asserts its role. Here the engine survives."""
    async with engine(role=role, transfer="mooncake") as fake:
        answer = await post(fake, kv_transfer_params={asked: True, "transfer_id": "x"})
        assert answer.status_code == 500
        assert cached(await complete(fake)) == 0


async def test_an_engine_without_a_connector_ignores_all_that() -> None:
    async with engine(role="prefill") as fake:
        assert fake.bootstrap_url is None
        assert (await complete(fake, kv_transfer_params={"do_remote_prefill": True}))["kv_transfer_params"] is None


async def test_a_pair_with_a_pool_fetches_from_the_peer_and_saves_the_prompt(master: MooncakeMaster) -> None:
    async with pair("mooncake", pool_url=master.url) as (p, d):
        await complete(p, kv_transfer_params=to_prefill())
        await eventually(lambda: len(master.keys) == 2)
        asked = len(master.queries)
        assert cached(await complete(d, kv_transfer_params=await to_decode(p))) == 40
        assert len(master.queries) == asked
        assert d.gauges().pool_loads == 0
        assert (
            cached(await complete(d, [*PROMPT[:16], *range(900, 930)])) == 16
        )  # not split: its own cache, or the pool
        assert len(master.queries) == asked + 1


# -- pairs, Nixl

ASKS_NIXL = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None} | dict.fromkeys(
    ("remote_block_ids", "remote_host", "remote_port")
)


async def test_nixl_hands_params_over_in_the_answer() -> None:
    async with pair("nixl") as (p, d):
        await complete(p, PROMPT[:20])  # one block of it is cached at P
        told = (await complete(p, kv_transfer_params=ASKS_NIXL))["kv_transfer_params"]
        bootstrap = httpx.URL(p.bootstrap_url or "")
        assert told == {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [[1, 2, 3]],  # 40 tokens
            "remote_engine_id": await engine_id(p),
            "remote_request_id": told["remote_request_id"],
            "remote_host": "127.0.0.1",
            "remote_port": bootstrap.port,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": 40,
            "remote_blocks_expiry_time": None,
            "transfer_mode": "pull",
            "remote_prefill_cached_tokens": 16,
        }
        assert p.gauges().kv_usage > 0
        decoded = await complete(d, kv_transfer_params=told)
        assert cached(decoded) == 16  # what P found, not what came from P
        assert external(d) == (40, 40)
        await eventually(lambda: p.gauges().kv_usage == 0)


@pytest.mark.parametrize("policy", ["fail", "recompute"])
@pytest.mark.parametrize("trouble", ["unknown request", "lease over", "restarted"])
async def test_nixl_blocks_that_are_not_there(trouble: str, policy: str) -> None:
    async with pair("nixl", kv_load_failure_policy=policy, lease_s=30 if trouble != "lease over" else 0.02) as (p, d):
        told = (await complete(p, kv_transfer_params=ASKS_NIXL))["kv_transfer_params"]
        if trouble == "unknown request":
            told["remote_request_id"] = "cmpl-nobody"
        if trouble == "lease over":
            await eventually(lambda: p.gauges().kv_usage == 0)
        if trouble == "restarted":
            p.restart()
        answer = await post(d, kv_transfer_params=told | {"remote_prefill_cached_tokens": None})
        assert answer.status_code == (500 if policy == "fail" else 200)
        if policy == "recompute":
            assert cached(answer.json()) == 0


async def test_nixl_params_that_name_nothing_are_ignored() -> None:
    async with pair("nixl") as (_, d):
        assert cached(await complete(d, kv_transfer_params=ASKS_NIXL | {"do_remote_prefill": True})) == 0
