"""Engines that answer with bytes of the test's choice, and publishers of events that speak ZMTP by hand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tests.e2e.conftest import RouterClient

EVIL = "evil-model"
CHAT = "/v1/chat/completions"

Answer = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]


def http(body: bytes | Any, status: str = "200 OK", headers: bytes = b"") -> bytes:
    """A whole answer."""
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    return b"HTTP/1.1 %b\r\n%bcontent-length: %d\r\n\r\n%b" % (status.encode(), headers, len(body), body)


COMPLETION = http(
    {
        "id": "c",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6},
    },
    headers=b"content-type: application/json\r\n",
)


def models(*names: str) -> bytes:
    return http({"object": "list", "data": [{"id": name, "object": "model"} for name in names]})


class HostileEngine:
    """Answers by path. A callable writes what it likes, and the connection is closed after it."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[str] = []
        self.answers: dict[str, Answer] = {
            "/health": http(b""),
            "/v1/models": models(EVIL),
            "/kv_event_sources": http(b"", "404 Not Found"),
            "/metrics": http(b""),
            CHAT: COMPLETION,
        }

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                path = head.split(b" ", 2)[1].decode()
                length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(length or b"0"))
                self.asked.append(path)
                answer = self.answers.get(path.partition("?")[0], http(b"", "404 Not Found"))
                if not isinstance(answer, bytes):
                    await answer(writer)
                    return
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def hostile_engine(bound: str = "127.0.0.1", **answers: Answer) -> AsyncIterator[HostileEngine]:
    """`answers` by the last part of the path, with _ for -. `bound`: the address at which it listens."""
    running = HostileEngine()
    server = await asyncio.start_server(running.serve, bound, 0)
    running.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    for path in list(running.answers):
        if (name := path.rpartition("/")[2]) in answers:
            running.answers[path] = answers.pop(name)
    assert not answers
    async with server:
        yield running


def pouring(pieces: Iterable[bytes], pause_s: float = 0.0) -> Callable[[asyncio.StreamWriter], Awaitable[None]]:
    """An answer of these pieces, as fast as they are read."""
    pieces = list(pieces) if not isinstance(pieces, list) else pieces

    async def write(writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            if pause_s:
                await asyncio.sleep(pause_s)

    return write


async def until(check: Callable[[], Awaitable[object]], deadline_s: float = 10.0) -> None:
    """Wait until what `check()` returns is true."""
    async with asyncio.timeout(deadline_s):
        while not await check():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def ask(client: RouterClient, model: str, **fields: Any) -> int:
    """The status of one chat, 0 when the connection broke."""
    body = {"model": model, "messages": [{"role": "user", "content": "hello there"}], "max_tokens": 2} | fields
    try:
        return (await client.post(CHAT, body)).status_code
    except httpx.HTTPError:
        return 0


async def failures(client: RouterClient, model: str, count: int = 60) -> int:
    """How many of `count` chats with this model failed."""
    return sum([await ask(client, model) != 200 for _ in range(count)])
