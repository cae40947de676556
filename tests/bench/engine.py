"""The backend of the benchmark: a server that costs next to nothing, so that what is measured is the router.

Raw `asyncio.Protocol` on uvloop and httptools. It answers a chat completion with a fixed small JSON, or with a stream
of as many chunks as `max_tokens` asks for, one write each and spaced in time, so that a router meets them one by one.
For the idle measurement one process serves hundreds of ports, each with a silent KV-event publisher of its own.

    python -m tests.bench.engine --ports 200 --events     prints its ports, one JSON list, when it listens
"""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any, cast

import httptools
import uvloop
import zmq

MODEL = "bench"
SPACING_S = 0.004
ANSWER = json.dumps(
    {
        "id": "chatcmpl-0123456789abcdef",
        "object": "chat.completion",
        "created": 1795233405,
        "model": MODEL,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 40, "completion_tokens": 1, "total_tokens": 41},
    }
).encode()
CHUNK = (
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1795233405,"model":"bench",'
    b'"choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}\n\n'
)
USAGE = (
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1795233405,"model":"bench",'
    b'"choices":[],"usage":{"prompt_tokens":40,"completion_tokens":9,"total_tokens":49}}\n\n'
)


def metrics_page() -> bytes:
    """A page of the size of vLLM's (66 kB): three gauges that matter among some 700 lines that do not."""
    labels = f'{{engine="0",model_name="{MODEL}"}}'
    lines = [
        f"vllm:{gauge}{labels} 0.0" for gauge in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    ]
    for histogram in range(35):
        name = f"vllm:time_of_kind_{histogram}_seconds_bucket"
        lines += [f'{name}{{engine="0",le="{edge}.0",model_name="{MODEL}"}} 0.0' for edge in range(20)]
    return "\n".join(lines).encode() + b"\n"


class Engine(asyncio.Protocol):
    """One connection."""

    def __init__(self, sources: bytes, pages: dict[bytes, bytes]) -> None:
        self._pages = {**pages, b"/kv_event_sources": sources}
        self._parser: Any = None
        self._transport: asyncio.Transport | None = None
        self._url = b""
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpRequestParser(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._url = url
        self._body = []

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        page = self._pages.get(self._url)
        if page is not None:
            self._answer(page)
        elif self._url != b"/v1/chat/completions":
            self._answer(b"{}", b"404 Not Found")
        elif len(body := b"".join(self._body)) < 4096 and (request := json.loads(body)).get("stream"):
            self._stream(request)
        else:
            self._answer(ANSWER)

    def _answer(self, body: bytes, status: bytes = b"200 OK") -> None:
        head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(body))
        self._write(head + body)

    def _stream(self, request: dict[str, Any]) -> None:
        self._write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        asked = (request.get("stream_options") or {}).get("include_usage")
        last = (USAGE if asked else b"") + b"data: [DONE]\n\n"
        self._next(request["max_tokens"], last, asyncio.get_running_loop().time())

    def _next(self, left: int, last: bytes, due_s: float) -> None:
        if self._transport is None:
            return
        if not left:
            self._write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(last), last))
            return
        self._write(b"%x\r\n%b\r\n" % (len(CHUNK), CHUNK))
        asyncio.get_running_loop().call_at(due_s + SPACING_S, self._next, left - 1, last, due_s + SPACING_S)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


async def serve(ports: int, events: bool) -> None:
    card = {"id": MODEL, "object": "model", "created": 0, "owned_by": "bench", "root": MODEL, "parent": None}
    pages = {
        b"/health": b"",
        b"/version": b'{"version":"0.32.0"}',
        b"/v1/models": json.dumps({"object": "list", "data": [card | {"max_model_len": 131072}]}).encode(),
        b"/metrics": metrics_page(),
    }
    context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 2 * ports + 16)
    listening, publishers = [], []
    for _ in range(ports):
        sources = b"{}"
        if events:
            publisher = context.socket(zmq.PUB)
            port = publisher.bind_to_random_port("tcp://127.0.0.1")
            publishers.append(publisher)
            source = {"publisher": "zmq", "endpoint": f"tcp://127.0.0.1:{port}", "replay_endpoint": None, "topic": ""}
            sources = json.dumps({"0": source | {"enable_kv_cache_events": True}}).encode()
        server = await asyncio.get_running_loop().create_server(lambda s=sources: Engine(s, pages), "127.0.0.1", 0)
        listening.append(server.sockets[0].getsockname()[1])
    print(json.dumps(listening), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--ports", type=int, default=1)
    arguments.add_argument("--events", action="store_true")
    chosen = arguments.parse_args()
    uvloop.run(serve(chosen.ports, chosen.events))
