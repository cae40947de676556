"""The backend of the benchmark: a server that costs next to nothing, so that the router is what is measured.

Raw `asyncio.Protocol` on uvloop and httptools. It answers a chat completion with a fixed small JSON, or with a stream
of `max_tokens` chunks, one write each and spaced in time, so that a router receives them one by one. One process serves
hundreds of ports. With `--events` each has a KV-event publisher of its own, silent except for payloads that are posted
to any port's `/publish`: they go out on all of them. With `--render-at` it passes render requests on to a real engine.

    python -m tests.bench.engine --ports 200 --events     prints its ports, one JSON list, when it listens
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from functools import cache, partial
from typing import Any, cast

import httptools
import uvloop
import zmq

from router.config.schema import TokenizerSource
from router.lab.emulator.vocabulary import DATA
from router.prompt.api.parse import ReadOptions, read_prompt
from router.prompt.prompt import Chat, Text
from router.prompt.tokenization.local_tokenizer import LocalTokenizer
from router.prompt.tokenization.model_folder import load
from tests.bench import answers
from tests.bench.answers import MODEL as MODEL

SPACING_MS = 4.0
CHAT, RENDER = b"/v1/chat/completions", b"/v1/chat/completions/render"
RENDERS = (RENDER, b"/v1/completions/render")
UNCHANGED = ReadOptions(strip_fields=frozenset(), inject_usage=False)


class Publishers:
    """One silent ZeroMQ PUB socket per port."""

    def __init__(self, ports: int) -> None:
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, 2 * ports + 16)
        self._sockets: list[zmq.Socket[bytes]] = []
        self._seq = -1

    def add(self) -> bytes:
        """Add a publisher and return its entry of `/kv_event_sources`."""
        socket = self._context.socket(zmq.PUB)
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        self._sockets.append(socket)
        source = {"publisher": "zmq", "endpoint": f"tcp://127.0.0.1:{port}", "replay_endpoint": None, "topic": ""}
        return json.dumps({"0": source | {"enable_kv_cache_events": True}}).encode()

    def publish(self, payload: bytes) -> None:
        self._seq += 1
        for socket in self._sockets:
            socket.send_multipart([b"", self._seq.to_bytes(8, "big"), payload])

    def close(self) -> None:
        self._context.destroy(linger=0)


class Settings:
    """Settings that all connections share."""

    def __init__(self, spacing_ms: float, render_at: int | None, publishers: Publishers) -> None:
        self.pages = answers.pages()
        self.spacing_s = spacing_ms / 1000
        self.render_at = render_at
        self.publishers = publishers


@cache
def tokenizer() -> LocalTokenizer:
    return load(TokenizerSource(path=str(DATA)), "the benchmark's backend", time.time)


def rendered(path: bytes, body: bytes) -> bytes:
    """Return the prompt of a request as `/render` has it: with this the router proves its tokenizer."""
    prompt = read_prompt(path.removesuffix(b"/render").decode(), "application/json", body, UNCHANGED)
    assert isinstance(prompt.source, Chat | Text)
    one = {"token_ids": list(tokenizer().tokenize(prompt.source))}
    return json.dumps(one if path == RENDER else [one]).encode()


class Engine(asyncio.Protocol):
    """One connection."""

    def __init__(self, settings: Settings, sources: bytes) -> None:
        self._settings = settings
        self._sources = sources
        self._parser: Any = None
        self._transport: asyncio.Transport | None = None
        self._url = b""
        self._body: list[bytes] = []
        self._passing_on: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpRequestParser(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:  # a peer tries whether HTTP/2 is spoken here
            if self._transport is not None:
                self._transport.close()

    def on_url(self, url: bytes) -> None:
        self._url = url
        self._body = []

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        seen_ns = time.monotonic_ns()
        body = b"".join(self._body)
        if self._url == CHAT:
            self._chat(body, seen_ns)
        elif self._url in RENDERS and (port := self._settings.render_at) is not None:
            self._passing_on = asyncio.get_running_loop().create_task(self._pass_on(self._url, body, port))
        elif self._url in RENDERS:
            self._answer(rendered(self._url, body))
        elif self._url == b"/publish":
            self._settings.publishers.publish(body)
            self._answer(b"{}")
        elif self._url == b"/kv_event_sources":
            self._answer(self._sources)
        elif (page := self._settings.pages.get(self._url)) is not None:
            self._answer(page)
        elif self._url == b"/tokenize":  # silent, not refusing: routers then believe their own tokenizer
            self._answer(b"{}", b"503 Service Unavailable")
        else:
            self._answer(b"{}", b"404 Not Found")

    def _chat(self, body: bytes, seen_ns: int) -> None:
        tokens = answers.prompt_tokens(body)
        if (len(body) < 4096 or b'"stream": true' in body[:100]) and (request := json.loads(body)).get("stream"):
            self._stream(request, tokens)
        else:
            self._answer(answers.answer(tokens, seen_ns))

    async def _pass_on(self, url: bytes, body: bytes, port: int) -> None:
        """Forward a render request: one more hop, about a millisecond beside the 100 ms that rendering takes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
        head = b"POST %b HTTP/1.1\r\nhost: engine\r\nconnection: close\r\ncontent-type: application/json\r\n"
        writer.write(head % url + b"content-length: %d\r\n\r\n" % len(body) + body)
        self._write(await reader.read(-1))  # until it closes: `connection: close` passes on, and ends ours too
        writer.close()
        if self._transport is not None:
            self._transport.close()

    def _answer(self, body: bytes, status: bytes = b"200 OK") -> None:
        head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(body))
        self._write(head + body)

    def _begin_stream(self) -> None:
        self._write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        )

    def _stream(self, request: dict[str, Any], tokens: int) -> None:
        self._begin_stream()
        asked = (request.get("stream_options") or {}).get("include_usage")
        last = answers.ending(tokens, bool(asked))
        if with_ids := bool(request.get("return_token_ids")):
            self._write_chunk(answers.opening(tokens))
        self._next(request["max_tokens"], last, asyncio.get_running_loop().time(), with_ids)

    def _next(self, left: int, last: bytes, due_s: float, with_ids: bool) -> None:
        if self._transport is None:
            return
        if not left:
            self._write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(last), last))
            return
        self._write_chunk(answers.chunk(time.monotonic_ns(), with_ids=with_ids))
        due_s += self._settings.spacing_s
        asyncio.get_running_loop().call_at(due_s, self._next, left - 1, last, due_s, with_ids)

    def _write_chunk(self, data: bytes) -> None:
        self._write(b"%x\r\n%b\r\n" % (len(data), data))

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


async def serve(ports: int, events: bool, spacing_ms: float, render_at: int | None) -> None:
    publishers = Publishers(ports)
    settings = Settings(spacing_ms, render_at, publishers)
    listening = []
    for _ in range(ports):
        sources = publishers.add() if events else b"{}"
        server = await asyncio.get_running_loop().create_server(partial(Engine, settings, sources), "127.0.0.1", 0)
        listening.append(server.sockets[0].getsockname()[1])
    print(json.dumps(listening), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--ports", type=int, default=1)
    arguments.add_argument("--events", action="store_true")
    arguments.add_argument("--spacing-ms", type=float, default=SPACING_MS)
    arguments.add_argument("--render-at", type=int, metavar="PORT")
    chosen = arguments.parse_args()
    uvloop.run(serve(chosen.ports, chosen.events, chosen.spacing_ms, chosen.render_at))
