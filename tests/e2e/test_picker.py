"""The router as a gateway's endpoint picker, over real gRPC; the test plays the gateway and the engine's answer.

Through a real Envoy the same is tested in `tests/gateway/test_picker.py`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from router.picker.ext_proc_pb2 import FULL_DUPLEX_STREAMED as FULL_DUPLEX
from router.picker.ext_proc_pb2 import ProcessingRequest
from router.picker.names import ACCESS_LOG
from tests.e2e.conftest import LOCAL, MODEL, Router
from tests.e2e.test_admission import ON, SMALL, a_full_house, until_waiting
from tests.fakes.engines import FakeEngine, engine, eventually
from tests.fakes.gateway import BUFFERED, STREAMED, Choice, Exchange, Gateway, Refusal
from tests.fakes.otlp import receiver

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
PICKER = LOCAL | {"health_port": 0, "tls": "off"}
USAGE = {"prompt_tokens": 12, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8}}
JSON_ANSWER = json.dumps({"id": "a", "choices": [{"finish_reason": "stop"}], "usage": USAGE}).encode()
CHUNK = b'data: {"choices":[{"delta":{"content":"hi"},"finish_reason":null}]}\n\n'
USAGE_CHUNK = b'data: {"choices":[],"usage":%s}\n\n' % json.dumps(USAGE).encode()
DONE = b"data: [DONE]\n\n"


def chat(content: str = "hello there", **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], **fields}


class Picker:
    """A router with a picker, its engines, and a gateway's connection to it."""

    def __init__(self, router: Router, engines: list[FakeEngine], gateway: Gateway) -> None:
        self.router = router
        self.engines = engines
        self.gateway = gateway

    async def choose(self, path: str = CHAT, body: Any = None, **options: Any) -> tuple[Exchange, Choice]:
        exchange = self.gateway.open(**{k: options.pop(k) for k in ("response_mode", "request_mode") if k in options})
        choice = await exchange.ask(path, chat() if body is None else body, **options)
        assert isinstance(choice, Choice), choice
        return exchange, choice

    async def refused(self, path: str = CHAT, body: Any = None, **options: Any) -> Refusal:
        exchange = self.gateway.open()
        refusal = await exchange.ask(path, body, **options)
        assert isinstance(refusal, Refusal), refusal
        assert await exchange.ended() == grpc.StatusCode.OK
        return refusal

    async def last(self) -> dict[str, Any]:
        return await self.router.record((await self.router.records(1))[0]["id"])


@pytest.fixture
def picker(router: Callable[..., Any]) -> Callable[..., Any]:
    """`picker(engines=2, picker={}, **sections)`: a running `Picker`; at its end nothing is left in the books."""

    @asynccontextmanager
    async def start(engines: int = 2, picker: dict[str, Any] | None = None, **sections: Any) -> AsyncIterator[Picker]:
        async with engine() as a, engine() as b:
            fakes = [a, b][:engines]
            async with router(fakes, picker=PICKER | (picker or {}), **sections) as running:
                async with Gateway.connect(running.app.picker_port) as gateway:
                    yield Picker(running, fakes, gateway)
                await eventually(running.idle)

    return start


# the choice


@pytest.mark.parametrize("size", [0, 320_000])
async def test_a_choice_stands_in_header_and_metadata_and_the_body_comes_back(picker: Any, size: int) -> None:
    async with picker() as p:
        body = json.dumps(chat("x" * size)).encode()
        exchange, choice = await p.choose(CHAT, body)
        assert choice.endpoint in {fake.address for fake in p.engines}
        assert choice.metadata["envoy.lb"] == {"x-gateway-destination-endpoint": choice.endpoint}
        assert choice.body == body
        assert max(choice.pieces) <= 62_000
        assert len(choice.headers["x-request-id"]) > 4
        assert await exchange.answer(200, [JSON_ANSWER[:20], JSON_ANSWER[20:]], choice.endpoint) == JSON_ANSWER
        assert await exchange.ended() == grpc.StatusCode.OK
        record = await p.last()
        assert (record["status"], record["output_tokens"], record["cached_tokens"]) == (200, 3, 8)
        assert [attempt["end"] for attempt in record["attempts"]] == ["ok"]
        assert choice.key.startswith(record["id"])


async def test_the_same_prompt_goes_where_it_went(picker: Any) -> None:
    async with picker() as p:
        endpoints = set()
        for _ in range(4):
            exchange, choice = await p.choose(CHAT, chat("the same words " * 200))
            await exchange.answer(200, [b"{}"], choice.endpoint)
            endpoints.add(choice.endpoint)
        assert len(endpoints) == 1


@pytest.mark.parametrize("as_text", [False, True])
async def test_only_the_endpoints_of_the_subset(picker: Any, as_text: bool) -> None:
    async with picker() as p:
        for fake in p.engines:
            names = [fake.address, "10.9.9.9:1"]
            exchange, choice = await p.choose(subset=", ".join(names) if as_text else names)
            assert choice.endpoint == fake.address
            await exchange.answer(200, [JSON_ANSWER], choice.endpoint)
        exchange, choice = await p.choose(subset=["127.0.0.1"])  # an address without a port is all of its ports
        await exchange.answer(200, [JSON_ANSWER], choice.endpoint)
        for nobody in (["10.9.9.9:1"], [], ""):
            refusal = await p.refused(CHAT, chat(), subset=nobody)
            assert refusal.status == 503
            assert refusal.headers["x-llm-d-request-dropped-reason"] == "rejected-no-endpoints"


async def test_a_gateway_that_tries_lists_gets_one(picker: Any) -> None:
    async with picker(picker={"fallbacks": 3}) as p:
        exchange, choice = await p.choose()
        assert sorted(choice.endpoint.split(",")) == sorted(fake.address for fake in p.engines)
        first, second = choice.endpoint.split(",")
        assert await exchange.answer(200, [JSON_ANSWER], second) == JSON_ANSWER
        record = await p.last()
        assert [(a["end"], a["target"]) for a in record["attempts"]] == [
            ("connect", f"{first}/0"),
            ("ok", f"{second}/0"),
        ]
        assert record["output_tokens"] == 3
        assert await p.router.metric("warmroute_picker_moved_total") == 1


async def test_an_endpoint_that_is_no_engine_here_is_said(picker: Any) -> None:
    async with picker() as p:
        exchange, choice = await p.choose()
        assert await exchange.answer(200, [JSON_ANSWER], "10.9.9.9:1", by_metadata=True) == JSON_ANSWER
        record = await p.last()
        assert [attempt["end"] for attempt in record["attempts"]] == ["connect"]
        assert "10.9.9.9:1" in record["error"]
        assert choice.endpoint != "10.9.9.9:1"


async def test_a_buffered_body_is_kept_by_the_gateway_unless_it_changes(picker: Any) -> None:
    async with picker() as p:
        exchange, choice = await p.choose(request_mode=BUFFERED)
        assert (choice.body, choice.endpoint in {fake.address for fake in p.engines}) == (b"", True)
        await exchange.answer(200, [JSON_ANSWER], choice.endpoint)
        exchange, choice = await p.choose(CHAT, chat(stream=True), request_mode=BUFFERED)
        assert json.loads(choice.body)["stream_options"] == {"include_usage": True}
        await exchange.answer(200, [CHUNK, USAGE_CHUNK + DONE], choice.endpoint, content_type="text/event-stream")


async def test_request_bodies_that_do_not_come_are_refused(picker: Any) -> None:
    async with picker() as p:
        exchange = p.gateway.open(request_mode=STREAMED)
        await exchange.send_head(CHAT)
        refusal = await exchange.read_choice()
        assert isinstance(refusal, Refusal)
        assert (refusal.status, b"request_body_mode" in refusal.body) == (500, True)


# requests and refusals in the client's dialect


async def test_refusals_are_those_of_the_proxy(picker: Any) -> None:
    async with picker(limits={"body_bytes": 1000}) as p:
        cases = [(CHAT, b"{", 400), (CHAT, chat("x" * 2000), 413), (CHAT, chat() | {"model": "none"}, 404)]
        cases += [(MESSAGES, chat() | {"model": "none"}, 404), ("/v1/load_lora_adapter", b"{}", 404)]
        for path, body, status in cases:
            proxied = await p.router.post(path, body)
            refusal = await p.refused(path, body)
            assert (refusal.status, refusal.json) == (proxied.status_code, proxied.json()) == (status, refusal.json)
        listed, proxied = await p.refused("/v1/models"), await p.router.http.get("/v1/models")
        assert listed.status == 200
        assert [card | {"created": 0} for card in listed.json["data"]] == [
            card | {"created": 0} for card in proxied.json()["data"]
        ]
        for path in ("/health", "/metrics", "/load"):
            assert (await p.refused(path)).status == 404


async def test_the_engine_continues_the_router_s_trace(picker: Any) -> None:
    client = f"00-{'a' * 32}-{'b' * 16}-01"
    with receiver() as traces:
        async with picker(tracing={"endpoint": traces.url, "sample_ratio": 0}) as p:
            exchange, choice = await p.choose(headers=[("traceparent", client), ("tracestate", "v=1")])
            await exchange.answer(200, [JSON_ANSWER], choice.endpoint)
            spans = {span.name: span for span in await traces.wait(len)}
            assert choice.headers["traceparent"] == f"00-{'a' * 32}-{spans['attempt'].span_id}-01".encode()
            assert spans[f"chat {MODEL}"].parent_id == "b" * 16
            assert "tracestate" not in choice.removed
            _, choice = await p.choose(headers=[("traceparent", "nonsense"), ("tracestate", "v=1")])
            assert (choice.headers["traceparent"][-3:], "tracestate" in choice.removed) == (b"-00", True)


async def test_a_get_that_is_listed_goes_to_an_engine(picker: Any) -> None:
    async with picker(edge={"extra_endpoints": [{"path": "/version", "method": "GET"}]}) as p:
        exchange = p.gateway.open()
        choice = await exchange.ask("/version")
        assert isinstance(choice, Choice)
        assert (choice.endpoint in {fake.address for fake in p.engines}, choice.pieces) == (True, [])
        await exchange.answer(200, [b"{}"], choice.endpoint)


async def test_too_many_requests_are_shed_with_llm_ds_reason(picker: Any) -> None:
    async with picker(limits={"concurrent": 1}) as p:
        exchange, choice = await p.choose()
        refusal = await p.refused(CHAT, chat())
        assert (refusal.status, refusal.headers["x-llm-d-request-dropped-reason"]) == (429, "rejected-saturated")
        assert refusal.headers["retry-after"] == "1"
        await exchange.answer(200, [JSON_ANSWER], choice.endpoint)
        await eventually(p.router.idle)
        exchange, choice = await p.choose()
        await exchange.answer(200, [JSON_ANSWER], choice.endpoint)


async def test_a_client_key_is_asked_for_and_goes_no_further(picker: Any, tmp_path: Any) -> None:
    from hashlib import sha256

    keys = tmp_path / "keys"
    keys.write_text(f"{sha256(b'secret').hexdigest()} alice\n")
    async with picker(clients={"keys_file": str(keys)}) as p:
        assert (await p.refused(CHAT, chat())).status == 401
        exchange, choice = await p.choose(headers=[("authorization", "Bearer secret"), ("x-warmroute-x", "1")])
        assert sorted(choice.removed) == ["authorization", "x-warmroute-x"]
        await exchange.answer(200, [JSON_ANSWER], choice.endpoint)
        assert (await p.last())["client"] == "alice"


async def test_limits_of_tenants_hold_behind_a_gateway(picker: Any) -> None:
    classes = {"default": {"limits": {"requests_per_minute": 1, "tokens_per_minute": 1000}}}
    alice, bob = [("x-tenant", "alice")], [("x-tenant", "bob")]
    async with picker(clients={"tenant_header": "x-tenant", "service_classes": classes}) as p:
        exchange, choice = await p.choose(headers=alice)
        told = await exchange.begin_answer(200, choice.endpoint)
        assert told["x-ratelimit-remaining-requests"] == b"0"
        await exchange.send_piece(JSON_ANSWER, last=True)
        assert await exchange.ended() == grpc.StatusCode.OK
        refusal = await p.refused(CHAT, chat(), headers=alice)
        assert (refusal.status, refusal.json["error"]["code"]) == (429, "requests_per_minute")
        assert refusal.headers["x-ratelimit-limit-requests"] == "1"
        assert 50 <= int(refusal.headers["retry-after"]) <= 61
        await p.choose(headers=bob)
        rows = (await p.router.admin.get("/admin/usage")).raise_for_status().json()["usage"]
        row, refused = sorted((row for row in rows if row["tenant"] == "alice"), key=lambda row: row["model"] == "")
        assert refused["refused"] == {"requests_per_minute": 1}, "its body was not read, so its model is not known"
        counts = [row[name] for name in ("requests", "input_tokens", "cached_tokens", "output_tokens")]
        assert counts == [1, 4, 8, 3], "as the engine counted them"


@pytest.mark.parametrize("name", ["x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id"])
async def test_requests_are_counted_for_the_fairness_id(picker: Any, name: str) -> None:
    async with picker() as p:
        for headers, sender in (([(name, "tenant-7")], "tenant-7"), ([("x-forwarded-for", "10.1.2.3")], "10.1.2.3")):
            exchange, choice = await p.choose(headers=headers)
            await exchange.answer(200, [JSON_ANSWER], choice.endpoint)
            assert (await p.last())["sender"] == sender


# answers in the conforming profile


async def test_usage_is_asked_for_and_hidden_from_who_did_not_ask(picker: Any) -> None:
    async with picker() as p:
        exchange, choice = await p.choose(CHAT, chat(stream=True))
        assert json.loads(choice.body)["stream_options"] == {"include_usage": True}
        pieces = [CHUNK, CHUNK[:30], CHUNK[30:], USAGE_CHUNK, DONE]
        seen = await exchange.answer(200, pieces, choice.endpoint, content_type="text/event-stream")
        assert seen == CHUNK * 2 + DONE
        record = await p.last()
        assert (record["prompt_tokens"], record["output_tokens"]) == (12, 3)
        assert record["ttft_ms"] is not None


async def test_an_exchange_that_is_cut_is_neither_whole_nor_the_engines_fault(picker: Any) -> None:
    async with picker() as p:
        exchange, choice = await p.choose(CHAT, chat(stream=True))
        await exchange.begin_answer(200, choice.endpoint, content_type="text/event-stream")
        await exchange.send_piece(CHUNK)
        await exchange.call.read()
        exchange.call.cancel()
        record = await p.last()
        assert [attempt["end"] for attempt in record["attempts"]] == ["cut"]
        exchange, choice = await p.choose(CHAT, chat(stream=True))
        await exchange.begin_answer(200, choice.endpoint, content_type="text/event-stream")
        await exchange.send_piece(CHUNK + USAGE_CHUNK + DONE)
        await exchange.call.read()
        await exchange.call.done_writing()  # after the last event nothing is missing
        record = await p.last()
        assert [attempt["end"] for attempt in record["attempts"]] == ["ok"]


@pytest.mark.parametrize(
    ("details", "content_type", "end"),
    [
        ("upstream_reset_before_response_started{remote_connection_failure}", "text/plain", "connect"),
        ("upstream_reset_before_response_started{connection_termination}", "text/plain", "died"),
        (None, "text/plain", "connect"),
        (None, "application/json", "busy"),
        ("via_upstream", "application/json", "busy"),
        ("request_payload_too_large", "text/plain", "rejected"),
    ],
)
async def test_what_a_gateway_answered_by_itself(picker: Any, details: str | None, content_type: str, end: str) -> None:
    async with picker() as p:
        exchange, choice = await p.choose()
        answer = await exchange.answer(503, [b"no"], choice.endpoint, details=details, content_type=content_type)
        assert answer == b"no", "it passes unchanged"
        record = await p.last()
        assert ([attempt["end"] for attempt in record["attempts"]], record["status"]) == ([end], 503)


@pytest.mark.parametrize("half_close", [False, True])
async def test_who_leaves_while_it_waits_leaves_nothing_behind(picker: Any, half_close: bool) -> None:
    async with picker() as p:
        exchange = p.gateway.open()
        await exchange.send_head(CHAT)
        await exchange.send_body(b'{"model":', last=False)
        await eventually(lambda: p.router.limiter.held_bytes or p.router.app._picker._calls)  # type: ignore[union-attr]
        await (exchange.call.done_writing() if half_close else asyncio.sleep(0))
        if not half_close:
            exchange.call.cancel()
        exchange, _ = await p.choose()
        exchange.call.cancel()  # after the choice, before an answer
        await eventually(p.router.idle)
        assert (await p.last())["attempts"][0]["end"] == "client_gone"


# the thin profile


async def test_the_picker_leaves_after_the_first_piece_and_the_log_tells_the_end(picker: Any) -> None:
    async with picker() as p:
        log = p.gateway.logs()
        await log.begin()
        exchange, choice = await p.choose(CHAT, chat(stream=True), response_mode=STREAMED)
        assert "stream_options" not in json.loads(choice.body), "what cannot be hidden is not asked for"
        await exchange.begin_answer(200, choice.endpoint, content_type="text/event-stream")
        await exchange.send_piece(CHUNK)
        assert (await exchange.call.read()).HasField("response_body")
        assert await exchange.ended() == grpc.StatusCode.OK
        assert p.router.booked == 1
        await log.tell(choice.key, prompt_tokens=12.0, completion_tokens=3.0, cached_tokens=8.0)
        record = await p.last()
        assert [attempt["end"] for attempt in record["attempts"]] == ["ok"]
        assert (record["prompt_tokens"], record["cached_tokens"], record["output_tokens"]) == (12, 8, 3)


@pytest.mark.parametrize(
    ("details", "end"),
    [
        ("downstream_remote_disconnect", "client_gone"),
        ("upstream_reset_after_response_started{connection_termination}", "broken"),
    ],
)
async def test_other_ends_in_the_log(picker: Any, details: str, end: str) -> None:
    async with picker() as p:
        log = p.gateway.logs()
        exchange, choice = await p.choose(CHAT, chat(stream=True), response_mode=STREAMED)
        await exchange.begin_answer(200, choice.endpoint, content_type="text/event-stream")
        await exchange.send_piece(CHUNK)
        await exchange.ended()
        await log.tell("another")
        await log.tell(choice.key, details)
        await log.tell(choice.key, details)  # twice: the second one is nobody's
        assert [attempt["end"] for attempt in (await p.last())["attempts"]] == [end]


async def test_a_whole_answer_needs_no_log(picker: Any) -> None:
    async with picker() as p:
        exchange, choice = await p.choose(response_mode=STREAMED)
        await exchange.answer(200, [JSON_ANSWER], choice.endpoint)
        record = await p.last()
        assert ([attempt["end"] for attempt in record["attempts"]], record["output_tokens"]) == (["ok"], 3)


# silence


async def test_an_engine_that_does_not_begin_in_time_is_answered_for(picker: Any) -> None:
    async with picker(limits={"first_byte_timeout_s": 0.2}) as p:
        exchange, _ = await p.choose()
        late = await exchange.read_choice()
        assert isinstance(late, Refusal)
        assert (late.status, late.json["error"]["type"]) == (504, "timeout_error")
        assert [attempt["end"] for attempt in (await p.last())["attempts"]] == ["deadline"]


async def test_a_gateway_that_stops_in_the_middle_is_cut_off(picker: Any) -> None:
    async with picker(listen=LOCAL | {"body_idle_timeout_s": 0.2}, limits={"idle_timeout_s": 0.2}) as p:
        nothing = p.gateway.open()
        await nothing.call.wait_for_connection()
        half = p.gateway.open()
        await half.send_head(CHAT)
        await half.send_body(b'{"model":', last=False)
        answered, choice = await p.choose()
        await answered.begin_answer(200, choice.endpoint)
        for exchange in (half, answered):
            assert await exchange.ended() == grpc.StatusCode.CANCELLED
        nothing.call.cancel()
        assert [attempt["end"] for attempt in (await p.last())["attempts"]] == ["cut"]


# peers that do not keep to it


async def raw(p: Picker, *messages: bytes, done: bool = True) -> grpc.StatusCode:
    """Send these messages on a stream of their own; return how it ended."""
    call = p.gateway._process()
    try:
        for message in messages:
            await call.write(message)
        if done:
            await call.done_writing()
        while await call.read() is not grpc.aio.EOF:
            pass
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        pass
    return await call.code()


async def test_messages_that_are_none_out_of_order_twice_or_huge_break_nothing(picker: Any) -> None:
    async with picker(limits={"body_bytes": 100_000}) as p:
        head, body, answer, piece = (ProcessingRequest() for _ in range(4))
        head.request_headers.headers.headers.add(key=":path", raw_value=CHAT.encode())
        head.request_headers.headers.headers.add(key=":method", raw_value=b"POST")
        body.request_body.body, body.request_body.end_of_stream = json.dumps(chat()).encode(), True
        answer.response_headers.headers.headers.add(key=":status", raw_value=b"yes")
        piece.response_body.body = b"x"
        h, b, a, c = (message.SerializeToString() for message in (head, body, answer, piece))
        assert await raw(p, b"\xff\xff\xff") == grpc.StatusCode.INVALID_ARGUMENT
        assert await raw(p, h, b"\xff\xff\xff") == grpc.StatusCode.INVALID_ARGUMENT
        assert await raw(p) == grpc.StatusCode.OK
        assert await raw(p, b"") == grpc.StatusCode.OK
        assert await raw(p, h) == grpc.StatusCode.OK
        assert await raw(p, bytes(3_000_000)) == grpc.StatusCode.RESOURCE_EXHAUSTED
        for messages in ((b, h), (c, a), (h, a, c, b), (h, h, b, b), (a, h), (h, b, c, a, a, c), (h, c, c)):
            await raw(p, *messages)
        await eventually(p.router.idle)
        assert not p.router.app._picker._calls  # type: ignore[union-attr]
        exchange, choice = await p.choose()
        await exchange.answer(200, [JSON_ANSWER], choice.endpoint)


async def test_log_entries_that_are_none_break_nothing(picker: Any) -> None:
    async with picker() as p:
        call = p.gateway.channel.stream_unary(f"/{ACCESS_LOG}/StreamAccessLogs")()
        await call.write(b"\xff\xff")
        assert await call.code() == grpc.StatusCode.INVALID_ARGUMENT


# what goes with the request


async def test_token_ids_go_into_the_body_where_they_are_proven(picker: Any) -> None:
    async with picker(engines=1, tokens={"token_id_passthrough": "auto"}) as p:
        support = p.router.app.core.passthrough._support
        await eventually(lambda: support.accepts(p.engines[0].address))
        body = chat("the same words " * 20)
        exchange, choice = await p.choose(CHAT, body)
        assert "kv_transfer_params" not in json.loads(choice.body), "this shape of chat was not compared yet"
        counted = (await p.router.records(1))[0]["prompt_tokens_counted"]
        usage = json.dumps({"usage": {"prompt_tokens": counted, "completion_tokens": 1}}).encode()
        await exchange.answer(200, [usage], choice.endpoint)
        await eventually(p.router.idle)
        for mode in (FULL_DUPLEX, BUFFERED):
            exchange, choice = await p.choose(CHAT, body, request_mode=mode)
            assert len(json.loads(choice.body)["kv_transfer_params"]["prompt_token_ids"]) == counted
            await exchange.answer(200, [usage], choice.endpoint)
        exchange, choice = await p.choose(CHAT, body)
        await exchange.answer(400, [b'{"error":{"message":"no","param":"prompt_token_ids"}}'], choice.endpoint)
        assert (await p.last())["status"] == 400
        assert not support.accepts(p.engines[0].address), "until a new trial"
        exchange, choice = await p.choose(CHAT, body)
        assert "kv_transfer_params" not in json.loads(choice.body)
        await exchange.answer(200, [usage], choice.endpoint)


async def test_a_pair_is_named_for_llm_ds_sidecar(router: Callable[..., Any]) -> None:
    async with engine() as a, engine() as b:
        transfer = {"protocol": "nixl"}
        engines = [
            {"url": a.url, "role": "prefill", "transfer": transfer},
            {"url": b.url, "role": "decode", "transfer": transfer},
        ]
        async with router(engines, picker=PICKER) as running, Gateway.connect(running.app.picker_port) as gateway:
            p = Picker(running, [a, b], gateway)
            steering = [(name, "10.9.9.9:1") for name in ("x-prefiller-host-port", "x-gateway-destination-endpoint")]
            exchange, choice = await p.choose(CHAT, chat("x" * 1000), headers=steering)
            assert (choice.endpoint, choice.headers["x-prefiller-host-port"]) == (b.address, a.address.encode())
            assert choice.removed == [], "what the client named is overwritten"
            await exchange.answer(200, [JSON_ANSWER], choice.endpoint)
            record = await p.last()
            assert (record["attempts"][0]["end"], record["attempts"][0]["prefill"]["end"]) == ("ok", "ok")
            await eventually(running.idle)


async def test_a_rank_and_the_engines_own_key_go_with_the_request(
    router: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_KEY", "sesame")
    async with engine(ranks=2) as a:
        engines = [{"url": a.url, "api_key_env": "ENGINE_KEY"}]
        async with router(engines, picker=PICKER) as running, Gateway.connect(running.app.picker_port) as gateway:
            p = Picker(running, [a], gateway)
            exchange, choice = await p.choose(headers=[("authorization", "Bearer mine")])
            assert choice.headers["authorization"] == b"Bearer sesame"
            assert choice.headers["x-data-parallel-rank"] in (b"0", b"1")
            await exchange.answer(200, [JSON_ANSWER], choice.endpoint)
            await eventually(running.idle)


# admission: a request waits in the picker


async def test_a_request_waits_in_the_picker_until_there_is_room(router: Callable[..., Any]) -> None:
    async with engine(**SMALL) as a, router([a], picker=PICKER, admission=ON | {"idle_s": 3.0}) as running:
        await a_full_house(running)
        async with Gateway.connect(running.app.picker_port) as gateway:
            p = Picker(running, [a], gateway)
            leaving = gateway.open()
            asked = asyncio.ensure_future(leaving.ask(CHAT, chat("another word for it " * 60)))
            await until_waiting(running, 1)
            leaving.call.cancel()
            await until_waiting(running, 0)
            await asyncio.gather(asked, return_exceptions=True)
            exchange, choice = await p.choose(CHAT, chat("a word of its own " * 60))
            head = await exchange.begin_answer(200, choice.endpoint)
            assert int(head["x-warmroute-waited-ms"]) > 100
            await exchange.send_piece(JSON_ANSWER, last=True)
            assert await exchange.ended() == grpc.StatusCode.OK
            await eventually(running.idle)


async def test_who_has_waited_too_long_in_the_picker_is_told_so(router: Callable[..., Any]) -> None:
    async with engine(**SMALL) as a, router([a], picker=PICKER, admission=ON | {"max_wait_s": 0.2}) as running:
        await a_full_house(running)
        async with Gateway.connect(running.app.picker_port) as gateway:
            refusal = await gateway.open().ask(MESSAGES, chat("another word for it " * 60, max_tokens=4))
            assert isinstance(refusal, Refusal)
            assert (refusal.status, refusal.json["error"]["type"]) == (429, "rate_limit_error")
            assert refusal.headers["x-llm-d-request-dropped-reason"] == "rejected-ttl-expired"
            await eventually(running.idle)
