"""Engines that keep every request until they are told to answer: a router's choice, one at a time, with the load that
it sees in the hands of the caller. They run in a thread of their own, so that code in virtual time can wait for them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple, Self, TypeVar

import httpx
import msgspec

from router.errors import WarmrouteError
from tests.bench import answers
from tests.bench.engine import RENDER, Publishers, Settings
from tests.bench.engine import Engine as BenchEngine
from tests.headtohead.engines import Engine

T = TypeVar("T")
PATIENCE_S = 60.0
COUNTED_S = 0.005  # after its last byte, until a router no longer counts a request


class Held(NamedTuple):
    """A request that an engine keeps. `number` is the engine's."""

    number: int
    connection: HeldEngine
    answer: asyncio.Task[httpx.Response]


class HeldEngine(BenchEngine):
    """One connection to engine `number`."""

    def __init__(self, number: int, settings: Settings, fleet: HeldEngines) -> None:
        super().__init__(settings, b"{}")
        self.number = number
        self._fleet = fleet

    def on_message_complete(self) -> None:
        if self._url == RENDER:  # for vllm-router's trees, which have token ids
            self._answer(msgspec.json.encode({"token_ids": read_token_ids(b"".join(self._body))}))
        else:
            super().on_message_complete()

    def _chat(self, body: bytes, seen_ns: int) -> None:
        self._begin_stream()  # as vLLM does: some routers count a request only until the head of its answer is there
        self._fleet.on_request(self)

    def release(self) -> None:
        """Send the answer, a stream of one token."""
        last = answers.ending(answers.PROMPT_TOKENS, with_usage=True)
        self._next(1, last, asyncio.get_running_loop().time(), with_ids=False)


def write_text(names: Sequence[int]) -> str:
    """Return a text with the same characters exactly where the blocks of 16 tokens are the same, 4 for each token."""
    return "".join(f"{name:016x}" * 4 for name in names)


def read_token_ids(body: bytes) -> list[int]:
    """Return the token ids of a chat with one message by `write_text`."""
    (message,) = msgspec.json.decode(body)["messages"]
    return memoryview(bytes.fromhex(message["content"])).cast("H").tolist()


class HeldEngines:
    """`count` engines, as a context; `engines` are their addresses. They publish no events."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="held engines", daemon=True)
        self._publishers = Publishers(0)
        self._servers: list[asyncio.Server] = []
        self._arrived: asyncio.Future[HeldEngine] = self._loop.create_future()
        self.engines: list[Engine] = []

    def __enter__(self) -> Self:
        self._thread.start()
        self.engines = [Engine(f"http://127.0.0.1:{port}", "", "", 0) for port in self._wait(self._listen())]
        return self

    def __exit__(self, *_: object) -> None:
        self._wait(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._publishers.close()
        self._loop.close()

    def send(self, port: int, content: bytes, session: str) -> Held:
        """Send a chat of a session to the router at `port`, and return it when an engine has it. Raises WarmrouteError
        if none gets it.
        """
        return self._wait(self._send(f"http://127.0.0.1:{port}/v1/chat/completions", content, session))

    def release(self, held: Held) -> None:
        """Let the engine answer, and wait until the client has the answer. Raises WarmrouteError if it has none."""
        self._wait(self._release(held))

    def on_request(self, connection: HeldEngine) -> None:
        if not self._arrived.done():
            self._arrived.set_result(connection)

    async def _listen(self) -> list[int]:
        # a connection for each request: routers close those that idle
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._http = httpx.AsyncClient(trust_env=False, timeout=None, limits=limits)
        settings = Settings(0.0, None, self._publishers)
        for number in range(self._count):
            make = partial(HeldEngine, number, settings, self)
            self._servers.append(await self._loop.create_server(make, "127.0.0.1", 0))
        return [server.sockets[0].getsockname()[1] for server in self._servers]

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        await self._http.aclose()

    async def _send(self, url: str, content: bytes, session: str) -> Held:
        self._arrived = self._loop.create_future()
        headers = {"content-type": "application/json", "x-session-id": session}
        sent = self._http.post(url, content=content, headers=headers)
        answer = self._loop.create_task(sent)
        either: list[asyncio.Future[Any]] = [self._arrived, answer]
        await asyncio.wait(either, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        if self._arrived.done():
            connection = self._arrived.result()
            return Held(connection.number, connection, answer)
        if not answer.done():
            answer.cancel()
            raise WarmrouteError(f"no engine got a request within {PATIENCE_S:.0f} s")
        raise WarmrouteError(f"no engine got a request: {_describe(answer.result())}")

    async def _release(self, held: Held) -> None:
        held.connection.release()
        answer = await asyncio.wait_for(held.answer, PATIENCE_S)
        if answer.status_code != 200:
            raise WarmrouteError(f"a client got {_describe(answer)}")
        await asyncio.sleep(COUNTED_S)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _describe(answer: httpx.Response) -> str:
    return f"{answer.status_code} {answer.text[:200]}"
