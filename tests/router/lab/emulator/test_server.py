"""An emulated engine's endpoints, over real sockets, as a router meets them; events included."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import zmq
import zmq.asyncio

from router.backends.vllm import info, metrics
from router.backends.vllm.kv_events import decode
from router.kvcache.events import BlocksCleared, BlocksRemoved, BlocksStored, Event, EventBatch
from tests.fakes.engines import FakeEngine, engine, eventually
from tests.paths import DATA, TLS

MODEL = "warm-tiny"
COMPLETIONS = "/v1/completions"


@pytest.fixture
async def fake() -> AsyncIterator[FakeEngine]:
    async with engine(loras=("sql=/adapters/v2/sql", "poet"), ranks=2, blocks=64) as fake:
        yield fake


@pytest.fixture
async def http(fake: FakeEngine) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=fake.url) as client:
        yield client


async def complete(http: httpx.AsyncClient, prompt: list[int], rank: int = 0, **more: Any) -> dict[str, Any]:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 1} | more
    answer = await http.post(COMPLETIONS, json=body, headers={"X-data-parallel-rank": str(rank)})
    assert answer.status_code == 200, answer.text
    read: dict[str, Any] = answer.json()
    return read


def cached(answer: dict[str, Any]) -> int:
    count: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count


# -- what a router asks


async def test_models_with_adapters(http: httpx.AsyncClient) -> None:
    models = info.read_models((await http.get("/v1/models")).content)
    assert models is not None
    assert [(card.id, card.root, card.parent) for card in models.cards] == [
        (MODEL, MODEL, None),
        ("sql", "/adapters/v2/sql", MODEL),
        ("poet", "/adapters/poet", MODEL),
    ]
    assert models.cards[0].max_model_len == 64 * 16


async def test_metrics_read_by_the_routers_scanner(http: httpx.AsyncClient) -> None:
    await complete(http, list(range(40)), rank=1)
    page = await http.get("/metrics")
    assert page.headers["content-type"].startswith("text/plain")
    gauges = metrics.read_gauges(page.content)
    assert set(gauges) == {0, 1}
    assert (gauges[1].running, gauges[1].waiting, gauges[1].kv_usage) == (0, 0, 0.0)
    assert (gauges[1].block_tokens, gauges[1].capacity_tokens) == (16, 64 * 16)
    text = page.text
    assert 'vllm:prefix_cache_queries_total{engine="1",model_name="warm-tiny"} 40.0' in text
    assert 'vllm:prefix_cache_queries_total{engine="0",model_name="warm-tiny"} 0.0' in text
    assert 'vllm:lora_requests_info{max_lora="2",running_lora_adapters="",waiting_lora_adapters=""}' in text


async def test_every_metric_is_one_of_the_real_engines() -> None:
    real = (DATA / "vllm-0.32-metrics.txt").read_text()
    async with engine() as fake, httpx.AsyncClient(base_url=fake.url) as http:
        ours = (await http.get("/metrics")).text
    samples = [line for line in real.splitlines() if line.startswith(("vllm:", "process_"))]
    shapes = {re.split("[{ ]", line)[0]: _label_names(line) for line in samples}
    lines = [line for line in ours.splitlines() if not line.startswith("#")]
    assert len(lines) > 10
    for line in lines:
        name = re.split("[{ ]", line)[0]
        assert name in shapes
        assert _label_names(line) <= shapes[name]


def _label_names(line: str) -> set[str]:
    return {pair.split("=")[0] for pair in line.partition("{")[2].rpartition("}")[0].split(",") if "=" in pair}


async def test_event_sources_read_by_the_router(http: httpx.AsyncClient) -> None:
    sources = info.read_event_sources((await http.get("/kv_event_sources")).content, "127.0.0.1")
    assert [source.rank for source in sources or []] == [0, 1]
    assert all(source.endpoint.startswith("tcp://127.0.0.1:") for source in sources or [])
    assert len({source.endpoint for source in sources or []}) == 2


async def test_no_event_sources_when_events_are_off() -> None:
    async with engine(events=False) as fake, httpx.AsyncClient(base_url=fake.url) as http:
        assert (await http.get("/kv_event_sources")).json() == {}
        assert cached(await complete(http, list(range(20)))) == 0


async def test_tokenize_and_back(http: httpx.AsyncClient) -> None:
    told = (await http.post("/tokenize", json={"prompt": "hello world", "return_token_strs": True})).json()
    assert told["count"] == len(told["tokens"]) == len(told["token_strs"])
    assert told["max_model_len"] == 64 * 16
    assert (await http.post("/detokenize", json={"tokens": told["tokens"]})).json() == {"prompt": "hello world"}


async def test_tokenize_renders_what_chat_renders(http: httpx.AsyncClient) -> None:
    chat: dict[str, Any] = {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "user", "content": "hello"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    }
    tokens = (await http.post("/tokenize", json=chat)).json()["tokens"]
    answer = (await http.post("/v1/chat/completions", json=chat | {"max_tokens": 1, "return_token_ids": True})).json()
    assert answer["prompt_token_ids"] == tokens
    without = (await http.post("/tokenize", json=chat | {"add_generation_prompt": False})).json()["tokens"]
    assert tokens[: len(without)] == without
    assert len(tokens) > len(without)


async def test_token_ids_given_with_a_chat_are_taken_as_they_are(http: httpx.AsyncClient) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "return_token_ids": True}
    body["kv_transfer_params"] = {"prompt_token_ids": [5, 6, 7]}
    assert (await http.post("/v1/chat/completions", json=body)).json()["prompt_token_ids"] == [5, 6, 7]


async def test_health_load_version_and_unknown_paths(http: httpx.AsyncClient) -> None:
    assert (await http.get("/health")).status_code == 200
    assert (await http.get("/load")).json() == {"server_load": 0}
    assert (await http.get("/version")).json() == {"version": "0.32.0"}
    assert (await http.get("/v1/nowhere")).status_code == 404
    assert (await http.post("/v1/models")).status_code == 405


async def test_rerank_and_score(http: httpx.AsyncClient) -> None:
    ranked = await http.post(
        "/v1/rerank", json={"model": MODEL, "query": "q", "documents": ["a", "b", "c"], "top_n": 2}
    )
    scores = [result["relevance_score"] for result in ranked.json()["results"]]
    assert scores == sorted(scores, reverse=True)
    assert len(scores) == 2
    scored = await http.post("/v1/score", json={"model": MODEL, "text_1": "q", "text_2": ["a", "b"]})
    assert [one["index"] for one in scored.json()["data"]] == [0, 1]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[]", 400),
        (b"{}", 400),
        (b'{"model": "none", "prompt": "x"}', 404),
        (b'{"model": "warm-tiny"}', 400),
        (b'{"model": "warm-tiny", "prompt": []}', 400),
        (b'{"model": "warm-tiny", "prompt": [1], "max_tokens": "many"}', 400),
        (b'{"model": "warm-tiny", "prompt": [1], "n": "two"}', 400),
        (b'{"model": "warm-tiny", "prompt": {"a": 1}}', 400),
    ],
)
async def test_what_makes_no_sense_is_refused_in_vllms_shape(http: httpx.AsyncClient, body: bytes, status: int) -> None:
    answer = await http.post(COMPLETIONS, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == status


ODD: list[Any] = [None, True, -1, 10**30, 1.5, "", "x", [], [None], [[]], [[1, -1]], [[2**40]], {}, {"a": {}}]


@pytest.mark.parametrize("path", [COMPLETIONS, "/v1/chat/completions", "/v1/responses", "/v1/messages"])
async def test_no_odd_field_is_a_servers_error(http: httpx.AsyncClient, path: str) -> None:
    """Real engines refuse them with 4xx; a 5xx would look to a router like a broken engine."""
    whole = {"model": MODEL, "prompt": [1], "messages": [{"role": "user", "content": "x"}], "input": "x"}
    fields = ("prompt", "messages", "input", "n", "max_tokens", "seed", "tools", "tool_choice", "stream_options")
    for field in (*fields, "system", "instructions", "cache_salt", "kv_transfer_params", "min_tokens", "model"):
        for odd in ODD:
            answer = await http.post(path, json=whole | {"max_tokens": 2, field: odd})
            assert answer.status_code < 500, (field, odd, answer.text)


async def test_only_json_is_taken(http: httpx.AsyncClient) -> None:
    answer = await http.post(COMPLETIONS, content=b'{"model": "warm-tiny", "prompt": [1]}')
    assert answer.status_code == 400
    assert "application/json" in answer.json()["error"]["message"]


# -- ranks, adapters, what arrived


async def test_the_rank_header_picks_the_cache(http: httpx.AsyncClient) -> None:
    prompt = list(range(40))
    assert cached(await complete(http, prompt, rank=1)) == 0
    assert cached(await complete(http, prompt, rank=0)) == 0
    assert cached(await complete(http, prompt, rank=1)) == 32
    headers = {"X-data-parallel-rank": "2"}
    refused = await http.post(COMPLETIONS, json={"model": MODEL, "prompt": [1]}, headers=headers)
    assert refused.status_code == 400


async def test_without_a_rank_the_least_busy_serves() -> None:
    body = {"model": MODEL, "prompt": [1, 2], "max_tokens": 2}
    slow = engine(ranks=2, decode_ms_per_token=1000)
    async with slow as fake, httpx.AsyncClient(base_url=fake.url) as http, asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(http.post(COMPLETIONS, json=body)) for _ in range(4)]
        await eventually(lambda: [fake.gauges(rank).running for rank in range(2)] == [2, 2])
        for one in asked:
            one.cancel()


async def test_adapters_and_salts_have_caches_of_their_own(http: httpx.AsyncClient) -> None:
    prompt = list(range(40))
    for variant in ({}, {"model": "sql"}, {"cache_salt": "tenant"}):
        assert cached(await complete(http, prompt, **variant)) == 0
        assert cached(await complete(http, prompt, **variant)) == 32


async def test_tells_what_arrived(http: httpx.AsyncClient, fake: FakeEngine) -> None:
    await complete(http, [1, 2], kv_transfer_params={"do_remote_decode": True})
    (seen,) = (await http.get("/emulate/last", params={"path": COMPLETIONS})).json()
    assert '"kv_transfer_params"' in seen["body"]
    assert seen["headers"]["x-data-parallel-rank"] == "0"
    assert [call.method for call in fake.seen(COMPLETIONS)] == ["POST"]
    state = (await http.get("/emulate/state")).json()
    assert [rank["prompt_tokens"] for rank in state["ranks"]] == [2, 0]


# -- keys and certificates


async def test_an_api_key_guards_v1_only() -> None:
    async with engine(api_key="secret") as fake, httpx.AsyncClient(base_url=fake.url) as http:
        assert (await http.get("/health")).status_code == 200
        refused = await http.get("/v1/models")
        assert (refused.status_code, refused.json()) == (401, {"error": "Unauthorized"})
        assert (await http.get("/v1/models", headers={"authorization": "Bearer wrong"})).status_code == 401
        assert (await http.get("/v1/models", headers={"authorization": "Bearer secret"})).status_code == 200


async def test_tls() -> None:
    trust = ssl.create_default_context(cafile=str(TLS / "cert.pem"))
    async with (
        engine(cert_file=str(TLS / "cert.pem"), key_file=str(TLS / "key.pem")) as fake,
        httpx.AsyncClient(base_url=fake.url, verify=trust) as http,
    ):
        assert fake.url.startswith("https://")
        assert (await http.get("/health")).status_code == 200


# -- events


class Ear:
    def __init__(self, socket: zmq.asyncio.Socket) -> None:
        self._socket = socket

    async def batch(self) -> EventBatch:
        assert await self._socket.poll(5000), "no event came"
        batch = decode(await self._socket.recv_multipart())
        assert isinstance(batch, EventBatch)
        return batch

    async def silent(self) -> bool:
        return not await self._socket.poll(50)


@asynccontextmanager
async def heard(**options: Any) -> AsyncIterator[tuple[FakeEngine, httpx.AsyncClient, Ear]]:
    """A new engine whose every event is heard: requests are made until one is, then the engine begins anew."""
    context: zmq.Context[Any] = zmq.Context()
    socket = zmq.asyncio.Socket(context, zmq.SUB)
    async with engine(**options) as fake, httpx.AsyncClient(base_url=fake.url) as http:
        socket.connect(fake.sources()["0"]["endpoint"])
        socket.subscribe("")
        try:
            prompt = 0
            while not await socket.poll(10):
                prompt += 1
                await complete(http, [prompt] * 17)
            while await socket.poll(20):
                await socket.recv_multipart()
            fake.restart()
            yield fake, http, Ear(socket)
        finally:
            socket.close(linger=0)
            context.term()


@pytest.mark.parametrize("form", ["map", "array"])
async def test_requests_are_told_as_events_and_hits_are_not(form: str) -> None:
    async with heard(events_format=form) as (_, http, ear):
        await complete(http, list(range(40)))
        batch = await ear.batch()
        assert (batch.seq, batch.rank) == (0, 0)
        (event,) = batch.events
        assert isinstance(event, BlocksStored)
        assert (list(event.token_ids), event.block_tokens) == (list(range(32)), 16)
        await complete(http, list(range(40)))
        assert await ear.silent()


async def test_a_reset_is_told_with_the_next_request() -> None:
    async with heard() as (_, http, ear):
        await complete(http, list(range(40)))
        await ear.batch()
        assert (await http.post("/reset_prefix_cache")).status_code == 200
        assert await ear.silent()
        assert cached(await complete(http, list(range(40)))) == 0
        events = (await ear.batch()).events
        assert isinstance(events[0], BlocksCleared)
        assert isinstance(events[1], BlocksStored)


async def test_adding_up_the_events_gives_the_cache() -> None:
    async with heard(blocks=12) as (fake, http, ear):
        for start in range(12):
            await complete(http, list(range(start, start + 50)), max_tokens=20)
        events: list[Event] = []
        while not await ear.silent():
            events += (await ear.batch()).events
        assert any(isinstance(event, BlocksRemoved) for event in events)
        held: dict[int, int] = {}
        for event in events:
            assert isinstance(event, BlocksStored | BlocksRemoved)
            for label in event.hashes:
                held[label] = held.get(label, 0) + (1 if isinstance(event, BlocksStored) else -1)
        assert min(held.values()) == 0
        assert sum(held.values()) == fake.gauges().cached_blocks


async def test_leaves_no_task_and_no_port_behind() -> None:
    body = {"model": MODEL, "prompt": [1], "stream": True}
    async with httpx.AsyncClient() as http:
        async with engine(decode_ms_per_token=1000) as fake:
            port = fake.server.port
            async with http.stream("POST", fake.url + COMPLETIONS, json=body):
                await eventually(lambda: fake.gauges().running == 1)
        async with engine(port=port) as again:
            assert again.server.port == port
            assert (await http.get(again.url + "/health")).status_code == 200
