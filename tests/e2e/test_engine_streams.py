"""Streams of scripted engines through a whole router: cut at any byte, with errors inside, broken off. The oracle is
the bytes that the engine wrote.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import httpx
import openai
import pytest

from router.config.sections.listeners import LimitsConfig
from tests.e2e.conftest import MODEL, Router
from tests.fakes.engines import eventually, is_proof
from tests.patience import PATIENCE_S

CHAT, COMPLETIONS, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
LOAD = {"scorers": [{"name": "least_requests"}], "picker": {"name": "best"}}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
DONE = b"data: [DONE]\n\n"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"


def event(data: object, name: str = "") -> bytes:
    line = b"event: %b\n" % name.encode() if name else b""
    return line + b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"


def chunk(finish: str | None = None, **delta: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return event({"id": "c1", "model": MODEL, "choices": [choice]})


class ScriptedEngine:
    """Serves `MODEL`, and answers each prompt with `pieces`, one write after the other; `dies`: then it closes the
    connection; `hangs`: it sends nothing more; else the answer ends.
    """

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.dies = False
        self.hangs = False
        self.asked = 0
        self.probed = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                if head.startswith(b"POST"):
                    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                    if is_proof(head, await reader.readexactly(length)):
                        writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
                        continue
                    self.asked += 1
                    await self._answer(reader, writer)
                    if self.dies:
                        break
                else:
                    self.probed += b"/health" in head
                    cards = {"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": 4096}]}
                    body = json.dumps(cards).encode() if b"/v1/models" in head else b""
                    status = b"200 OK" if body or b"/health" in head else b"404 Not Found"
                    writer.write(b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        for piece in self.pieces:
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            for _ in range(3):  # the router reads it
                await asyncio.sleep(0)
        if self.hangs:
            await reader.read()
        if not self.dies:
            writer.write(b"0\r\n\r\n")


@asynccontextmanager
async def scripted(router: Any, count: int = 1, **config: Any) -> AsyncIterator[tuple[Router, list[ScriptedEngine]]]:
    """Yield a router that sends to the first of `count` scripted engines first, and the engines."""
    async with AsyncExitStack() as stack:
        fleet = [ScriptedEngine() for _ in range(count)]
        for one in fleet:
            server = await asyncio.start_server(one.serve, "127.0.0.1", 0)
            stack.callback(server.close)
            one.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        limits = {"continuation_bytes": LimitsConfig().continuation_bytes}
        settings = {"limits": limits, "policies": {"load": LOAD}, "active": "load", "tokenizers": {}} | config
        running = await stack.enter_async_context(router([one.url for one in fleet], wait=False, **settings))
        async with asyncio.timeout(PATIENCE_S):
            while len([i for i in running.core.fleet if i.targets]) < count or running.app.unready_reason():  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        for one in fleet[1:]:
            booked = next(i for i in running.core.fleet if i.config.url == one.url).targets[0]
            stack.callback(booked.book(0, 1).release)
        yield running, fleet


async def ask(r: Router, path: str = CHAT, **fields: Any) -> httpx.Response:
    body: dict[str, Any] = {"model": MODEL, "stream": True, "max_tokens": 9, "temperature": 0}
    if path == COMPLETIONS:
        body["prompt"] = "hello"
    elif path == RESPONSES:
        body = {"model": MODEL, "stream": True, "input": "hello"}
    else:
        body["messages"] = [{"role": "user", "content": "hello"}]
    return await r.post(path, body | fields)


def ends(record: dict[str, Any]) -> list[str]:
    return [attempt["end"] for attempt in record["attempts"]]


SAID = chunk(role="assistant", content="") + chunk(content="a") + chunk(content=" b")
STREAMS: dict[str, tuple[dict[str, Any], bytes]] = {
    "tools": ({"tools": TOOLS}, SAID + chunk("stop", content="c") + DONE),
    "stop": ({"stop": ["x"]}, SAID + chunk("stop", content="c") + DONE),
    "reasoning": ({}, SAID[: len(SAID) // 3] + chunk(reasoning_content="hm") + chunk("stop", content="c") + DONE),
    "text": ({}, SAID + b": ping\n\n" + chunk("stop", content="c") + DONE),
    "line breaks": ({"tools": TOOLS}, (SAID + chunk("stop") + DONE).replace(b"\n", b"\r\n")),
}


@pytest.mark.parametrize("kind", STREAMS)
async def test_an_engine_without_ids_whose_writes_are_cut_at_every_byte(router: Any, kind: str) -> None:
    asked, said = STREAMS[kind]
    async with scripted(router) as (r, (engine,)):
        for place in range(1, len(said)):
            engine.pieces = [said[:place], said[place:]]
            assert (await ask(r, **asked)).content == said, place
        engine.pieces = [said[n : n + 1] for n in range(len(said))]
        assert (await ask(r, **asked)).content == said


# errors inside streams


def error(code: object, message: str = "too long", **more: Any) -> bytes:
    return event({"error": {"message": message, "type": "BadRequestError", "param": None} | {"code": code} | more})


CLIENTS_OWN = {
    "vllm": error(400) + DONE,
    "sglang": error(422, object="error") + DONE,
    "odd spacing": b'data:{ "error" : {"message":"too long" , "code" :"404"} }\n\n' + DONE,
    "429": error(429) + DONE,
    "a word": event({"error": {"message": "too long", "type": "invalid_request_error", "code": None}}) + DONE,
}
ENGINES_OWN = {
    "vllm": event({"error": {"message": "EngineCore died", "type": "InternalServerError", "code": 500}}) + DONE,
    "no code": event({"error": {"message": "EngineCore died"}}) + DONE,
    "odd spacing": b'data:{ "error" : {"message":"EngineCore died" , "code" :"503"} }\n\n' + DONE,
    "a string": event({"error": "EngineCore died"}) + DONE,
}
ASKED: dict[str, dict[str, Any]] = {
    "plain": {},
    "tools": {"tools": TOOLS},
    "not continuable": {"presence_penalty": 0.5},
}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("kind", CLIENTS_OWN)
async def test_a_clients_own_error_in_a_stream_passes_and_blames_nobody(router: Any, kind: str, asked: str) -> None:
    breaker = {"breaker": {"failures": 1}}
    async with scripted(router, 2, fleet=breaker) as (r, fleet):
        for begun in (b"", SAID):
            for one in fleet:
                one.pieces = [begun, CLIENTS_OWN[kind]] if begun else [CLIENTS_OWN[kind]]
            asked_before = sum(one.asked for one in fleet)
            answer = await ask(r, **ASKED[asked])
            assert answer.content == begun + CLIENTS_OWN[kind]
            assert sum(one.asked for one in fleet) == asked_before + 1
            record = await r.record(answer)
            assert (ends(record), record["error"], record["uncontinued"]) == (["rejected"], "too long", None)
        assert await r.metric("warmroute_errors_total", reason="engine_4xx") == 2
        assert await r.metric("warmroute_errors_total") == 2
        states = [target.breaker.is_open for i in r.core.fleet for target in i.targets.values()]
        assert states == [False, False]


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("kind", ENGINES_OWN)
async def test_an_engines_own_error_is_its_failure_and_its_words_are_not_lost(
    router: Any, kind: str, asked: str
) -> None:
    """Where no other engine carries the answer on, the client gets what the last one reported."""
    said = SAID + ENGINES_OWN[kind]
    async with scripted(router, 1, fleet={"breaker": {"failures": 1}}) as (r, (engine,)):
        engine.pieces = [SAID, ENGINES_OWN[kind]]
        answer = await ask(r, **ASKED[asked])
        assert answer.content == said
        record = await r.record(answer)
        assert ends(record) == ["broken"]
        assert "EngineCore died" in record["error"]
        assert record["uncontinued"] is not None
        assert await r.metric("warmroute_errors_total", reason="broken") == 1
        assert [target.breaker.is_open for i in r.core.fleet for target in i.targets.values()] == [True]


async def test_an_engines_own_error_as_the_first_event_is_tried_elsewhere(router: Any) -> None:
    async with scripted(router, 2) as (r, (first, second)):
        first.pieces = [ENGINES_OWN["vllm"]]
        second.pieces = [SAID + chunk("stop") + DONE]
        answer = await ask(r)
        assert answer.content == second.pieces[0]
        assert ends(await r.record(answer)) == ["continued", "ok"]
        second.pieces = [ENGINES_OWN["no code"].replace(b"died", b"is on fire")]
        answer = await ask(r)
        assert answer.content == second.pieces[0], "the last engine's words"
        assert "is on fire" in (await r.record(answer))["error"]


async def test_a_client_sees_what_the_engine_reported(router: Any) -> None:
    async with scripted(router) as (r, (engine,)):
        client = openai.AsyncOpenAI(base_url=f"{r.url}/v1", api_key="none", max_retries=0)
        for end, message in ((CLIENTS_OWN["vllm"], "too long"), (ENGINES_OWN["vllm"], "EngineCore died")):
            engine.pieces = [SAID, end]
            with pytest.raises(openai.APIError, match=message):
                async for _ in await client.chat.completions.create(
                    model=MODEL, messages=[{"role": "user", "content": "hello"}], stream=True
                ):
                    pass
        await client.close()


OTHER_ERRORS = [
    (MESSAGES, event({"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}, "error"), False),
    (MESSAGES, event({"type": "error", "error": {"type": "internal_error", "message": "no"}}, "error"), True),
    (MESSAGES, event({"type": "error", "error": {"type": "overloaded_error", "message": "no"}}, "error"), True),
    (RESPONSES, event({"type": "error", "code": "400", "message": "no", "param": None}, "error"), False),
    (RESPONSES, event({"type": "error", "code": "server_error", "message": "no"}, "error"), True),
    (
        RESPONSES,
        event({"type": "response.failed", "response": {"error": {"code": "server_error", "message": "no"}}}),
        True,
    ),
    (
        RESPONSES,
        event({"type": "response.failed", "response": {"error": {"code": "invalid_prompt", "message": "no"}}}),
        False,
    ),
]


@pytest.mark.parametrize(("path", "end", "engines_own"), OTHER_ERRORS)
async def test_errors_in_streams_of_other_apis_pass_and_blame_alike(
    router: Any, path: str, end: bytes, engines_own: bool
) -> None:
    async with scripted(router, 1, fleet={"breaker": {"failures": 1}}) as (r, (engine,)):
        engine.pieces = [event({"type": "something", "error": None}), end]
        answer = await ask(r, path)
        assert answer.content == b"".join(engine.pieces)
        record = await r.record(answer)
        assert ends(record) == ["broken" if engines_own else "rejected"]
        assert [t.breaker.is_open for i in r.core.fleet for t in i.targets.values()] == [engines_own]


# streams that break off


def response_event(kind: str, number: int, **fields: Any) -> bytes:
    return event({"type": kind, "sequence_number": number} | fields, kind)


CREATED: dict[str, Any] = {
    "id": "resp_1", "object": "response", "created_at": 17, "model": MODEL, "status": "in_progress", "output": [],
    "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "temperature": 1.0, "top_p": 1.0,
    "metadata": {"of": "the client"}, "instructions": None, "incomplete_details": None, "error": None,
}  # fmt: skip
DELTA = {"item_id": "m", "output_index": 0, "content_index": 0, "delta": "hi", "logprobs": []}
BEGUN = response_event("response.created", 0, response=CREATED) + response_event(
    "response.output_text.delta", 1, **DELTA
)
LONG = BEGUN.replace(b'"instructions":null', b'"instructions":"%b"' % (b"long " * 4000))


def events_of(content: bytes) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for part in filter(None, content.split(b"\n\n")):
        name, _, data = part.partition(b"\ndata: ")
        found.append((name.removeprefix(b"event: ").decode(), json.loads(data)))
    return found


@pytest.mark.parametrize(("begun", "metadata"), [(BEGUN, CREATED["metadata"]), (LONG, {})], ids=["short", "long"])
async def test_a_broken_response_stream_ends_as_the_api_has_it(router: Any, begun: bytes, metadata: object) -> None:
    async with scripted(router) as (r, (engine,)):
        engine.pieces, engine.dies = [begun], True
        answer = await ask(r, RESPONSES)
        assert answer.content.startswith(begun)
        (error_name, failure), (failed_name, failed) = events_of(answer.content[len(begun) :])
        assert (error_name, failed_name) == ("error", "response.failed")
        message = "the engine closed the connection"
        nested = {"message": message, "type": "upstream_error", "param": None, "code": "engine_failed"}
        assert failure == {
            "type": "error", "sequence_number": 2, "code": "engine_failed", "message": message, "param": None,
            "error": nested,
        }  # fmt: skip
        assert (failed["type"], failed["sequence_number"]) == ("response.failed", 3)
        response = failed["response"]
        assert openai.types.responses.Response.model_validate(response).status == "failed"
        assert response["error"] == {"code": "server_error", "message": message}
        assert (response["id"], response["created_at"], response["model"], response["metadata"]) == (
            *("resp_1", 17, MODEL),
            metadata,
        )
        assert ends(await r.record(answer)) == ["broken"]


async def test_a_client_of_responses_sees_why_its_stream_ended(router: Any) -> None:
    async with scripted(router) as (r, (engine,)):
        engine.pieces, engine.dies = [BEGUN], True
        client, seen = openai.AsyncOpenAI(base_url=f"{r.url}/v1", api_key="none", max_retries=0), []

        async def read() -> None:
            async for one in await client.responses.create(model=MODEL, input="hello", stream=True):
                seen.append(one.type)

        with pytest.raises(openai.APIError, match="the engine closed the connection"):
            await read()
        assert seen == ["response.created", "response.output_text.delta"]
        await client.close()


async def test_a_client_of_messages_sees_why_its_stream_ended(router: Any) -> None:
    import anthropic  # here: it takes a second to load

    start = {"id": "m", "type": "message", "role": "assistant", "content": [], "model": MODEL, "stop_reason": None}
    start |= {"stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 0}}
    async with scripted(router) as (r, (engine,)):
        engine.pieces, engine.dies = [event({"type": "message_start", "message": start}, "message_start")], True
        client = anthropic.AsyncAnthropic(base_url=r.url, api_key="none", max_retries=0)
        with pytest.raises(anthropic.APIStatusError, match="the engine closed the connection"):
            async for _ in await client.messages.create(
                model=MODEL, messages=[{"role": "user", "content": "hello"}], max_tokens=9, stream=True
            ):
                pass
        await client.close()


async def test_an_event_that_was_sent_in_part_is_closed_first(router: Any) -> None:
    async with scripted(router) as (r, (engine,)):
        engine.pieces, engine.dies = [BEGUN, b'event: x\ndata: {"sequence_number":2,"a'], True
        answer = await ask(r, RESPONSES)
        rest = answer.content[len(BEGUN) :]
        assert rest.startswith(engine.pieces[1] + b"\n\nevent: error\n")
        assert [data["sequence_number"] for _, data in events_of(rest.partition(b"\n\n")[2])] == [3, 4]


# streams that outlive the grace time


STOPPED = "the router stopped before the answer was whole"
CONTENTS: dict[str, tuple[dict[str, Any], bytes]] = {
    CHAT: ({"messages": [{"role": "user", "content": "x"}]}, SAID),
    COMPLETIONS: ({"prompt": "x"}, event({"id": "c", "choices": [{"index": 0, "text": "a", "finish_reason": None}]})),
    MESSAGES: ({"messages": [{"role": "user", "content": "x"}], "max_tokens": 9}, event({"type": "ping"}, "ping")),
    RESPONSES: ({"input": "x"}, BEGUN),
}


async def read_chunks(reader: asyncio.StreamReader) -> bytes:
    """Return a chunked body, which has an end."""
    body = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    assert await reader.readexactly(2) + await reader.read() == b"\r\n", "and then the connection ends"
    return body


@pytest.mark.parametrize("workers", [1, 2])
async def test_streams_that_outlive_the_grace_time_end_with_an_error_event(
    router_process: Any, fleet_config: Any, workers: int
) -> None:
    """A client that does not read, and requests without an answer, do not hold up the end."""
    async with AsyncExitStack() as stack:
        engine = ScriptedEngine()
        engine.hangs = True
        server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
        stack.callback(server.close)
        engine.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        limits = {"grace_s": 0.3, "continuation_bytes": 1 << 20}
        config = fleet_config(
            [engine.url], tokenizers={}, limits=limits, workers=workers, policies={"load": LOAD}, active="load"
        )
        r = await stack.enter_async_context(router_process(config))
        clients = []
        for path, (fields, said) in CONTENTS.items():
            engine.pieces = [said]
            for _ in range(4):
                reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(r.url).port)
                stack.callback(writer.transport.abort)
                body = json.dumps({"model": MODEL, "stream": True} | fields).encode()
                head = b"POST %b HTTP/1.1\r\nhost: r\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
                writer.write(head % (path.encode(), len(body)) + body)
                await reader.readuntil(b"\r\n\r\n")
                clients.append((path, said, reader, writer))
        engine.pieces = []
        reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(r.url).port)
        stack.callback(writer.transport.abort)
        asked, body = engine.asked, json.dumps({"model": MODEL, "prompt": "x"}).encode()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: r\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        await eventually(lambda: engine.asked > asked)
        r.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            for path, said, stream, _ in clients:
                got = await read_chunks(stream)
                assert got.startswith(said), path
                rest = got[len(said) :]
                assert STOPPED.encode() in rest, (path, got)
                found = [line[7:].decode() for line in rest.splitlines() if line.startswith(b"event: ")]
                assert found == {MESSAGES: ["error"], RESPONSES: ["error", "response.failed"]}.get(path, []), path
            refusal = await reader.read()
            assert await r.process.wait() == 0
        assert refusal.startswith(b"HTTP/1.1 503 "), refusal
        assert b"retry-after: 1" in refusal
        assert b"the router is stopping" in refusal
        assert b"Traceback" not in r.log, r.log[-2000:]
