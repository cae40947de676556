"""An engine that takes bodies of any size without looking at them, so that it costs the machine nothing."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.e2e.conftest import MODEL

LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
ANSWER = b'{"choices":[]}'


class IndifferentEngine:
    """Serves `MODEL` with this context; `received` has the length of each body."""

    def __init__(self, context_tokens: int | None) -> None:
        self.context_tokens = context_tokens
        self.url = ""
        self.received: list[int] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                found = LENGTH.search(head)
                left = length = int(found[1]) if found else 0
                while left:
                    left -= len(await reader.read(min(left, 1 << 20)))
                writer.write(b"HTTP/1.1 %b\r\ncontent-type: application/json\r\n" % self._status(head))
                body = self._answer(head, length)
                writer.write(b"content-length: %d\r\n\r\n%b" % (len(body), body))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _status(self, head: bytes) -> bytes:
        if b" /tokenize " in head:  # silence proves nothing about the router's own tokenizer, and refutes nothing
            return b"503 Service Unavailable"
        return b"404 Not Found" if b"/kv_event_sources" in head else b"200 OK"

    def _answer(self, head: bytes, length: int) -> bytes:
        if head.startswith(b"POST /v1/"):
            self.received.append(length)
            return ANSWER
        if b" /v1/models " in head:
            card = {"id": MODEL, "object": "model", "max_model_len": self.context_tokens}
            return json.dumps({"object": "list", "data": [card]}).encode()
        return b""


@asynccontextmanager
async def indifferent_engine(context_tokens: int | None = 32_768) -> AsyncIterator[IndifferentEngine]:
    engine = IndifferentEngine(context_tokens)
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0, limit=1 << 20)
    engine.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield engine
