"""Engines that keep every request until they are told to answer: a router's choice, one at a time, with the load and
the KV events that it sees in the hands of the caller. They run in a thread of their own, so that code in virtual time
can wait for them.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Self, TypeVar

import msgspec

from router.clock import SystemClock
from router.errors import WarmrouteError
from router.kvcache.events import BlocksStored, Event
from router.lab.emulator.kv_publisher import EventSockets, KvPublisher
from router.lab.emulator.options import EngineFaults, EngineOptions
from router.tasks import Tasks
from tests.bench import answers
from tests.bench.engine import RENDER, Publishers, Settings
from tests.bench.engine import Engine as BenchEngine
from tests.bench.routers import Running
from tests.headtohead.engines import BLOCKS, ENGINES, NO_FAULTS, Engine
from tests.headtohead.quiescence import Quiescence

T = TypeVar("T")
PATIENCE_S = 60.0
READ_S = 0.015  # until a router that looks for events now and then has read them; vllm-router takes up to 5 ms


class Answer(NamedTuple):
    """What a client got. `text` is all of it, the head too; `status` is 0 if there is none."""

    status: int
    text: str


class Held(NamedTuple):
    """A request that an engine keeps. `number` is the engine's."""

    number: int
    connection: HeldEngine
    answer: asyncio.Task[Answer]


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

    def begin(self) -> None:
        """Send the first token of the answer."""
        self._write_chunk(answers.chunk(time.monotonic_ns()))

    def release(self) -> None:
        """Send one more token, and end the answer."""
        last = answers.ending(answers.PROMPT_TOKENS, with_usage=True)
        self._next(1, last, asyncio.get_running_loop().time(), with_ids=False)


def write_text(names: Sequence[int]) -> str:
    """Return a text with the same characters exactly where the blocks of 16 tokens are the same, 4 for each token."""
    return "".join(f"{name:016x}" * 4 for name in names)


def write_chat(names: Sequence[int], answer_tokens: int) -> bytes:
    """Return a chat with one message, `write_text` of `names`."""
    messages = [{"role": "user", "content": write_text(names)}]
    return msgspec.json.encode(
        {"model": answers.MODEL, "messages": messages, "max_tokens": answer_tokens, "stream": True}
    )


def read_token_ids(body: bytes) -> list[int]:
    """Return the token ids of a chat by `write_chat`."""
    (message,) = msgspec.json.decode(body)["messages"]
    return _token_ids(message["content"])


def _token_ids(text: str) -> list[int]:
    return memoryview(bytes.fromhex(text)).cast("H").tolist()


class HeldEngines:
    """The comparison's engines, with `blocks` each, as a context; `engines` are their addresses. `faults`: of their
    events, by number.
    """

    def __init__(self, blocks: int = BLOCKS, faults: Mapping[int, EngineFaults] = NO_FAULTS) -> None:
        self._blocks = blocks
        self._faults = faults
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="held engines", daemon=True)
        self._tasks = Tasks("held engines")
        self._silent = Publishers(0)
        self._sockets = EventSockets()
        self._publishers: list[KvPublisher] = []
        self._servers: list[asyncio.Server] = []
        self._arrived: asyncio.Future[HeldEngine] = self._loop.create_future()
        self._read_s = 0.0  # when the last events have been read
        self._routers: dict[int, Running] = {}  # that were sent something, by process
        self._quiescence = Quiescence([])
        self.engines: list[Engine] = []

    def __enter__(self) -> Self:
        self._thread.start()
        self.engines = self._wait(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._wait(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._silent.close()
        self._loop.close()

    def send(self, router: Running, content: bytes, session: str) -> Held:
        """Send a chat of a session to the router once it has taken in all events and answers, and return the chat when
        an engine has it. Raises WarmrouteError if none gets it.
        """
        return self._wait(self._send(router, content, session))

    def begin(self, held: Held) -> None:
        """Let the engine send the first token."""
        self._wait(self._begin(held))

    def release(self, held: Held) -> None:
        """Let the engine answer, and wait until the client has the answer. Raises WarmrouteError if it has none."""
        self._wait(self._release(held))

    def publish(self, number: int, events: Sequence[Event]) -> None:
        """Let engine `number` publish events, in which a block's token ids are those of its name."""
        self._wait(self._publish(number, events))

    def on_request(self, connection: HeldEngine) -> None:
        if not self._arrived.done():
            self._arrived.set_result(connection)

    async def _listen(self) -> list[Engine]:
        settings = Settings(0.0, None, self._silent)
        return [await self._open(number, settings) for number in range(ENGINES)]

    async def _open(self, number: int, settings: Settings) -> Engine:
        server = await self._loop.create_server(partial(HeldEngine, number, settings, self), "127.0.0.1", 0)
        self._servers.append(server)
        faults = self._faults.get(number, EngineFaults())
        publisher = KvPublisher(self._sockets, EngineOptions(seed=number), 0, SystemClock(), lambda: faults)
        self._publishers.append(publisher)
        self._tasks.spawn("replays", publisher.serve_replays())
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return Engine(url, publisher.endpoint, publisher.replay_endpoint or "", self._blocks)

    async def _close(self) -> None:
        await self._tasks.close()
        for publisher in self._publishers:
            publisher.close()
        self._sockets.close()
        for server in self._servers:
            server.close()
        self._quiescence.close()

    async def _publish(self, number: int, events: Sequence[Event]) -> None:
        self._publishers[number].publish([_with_token_ids(event) for event in events])
        self._read_s = self._loop.time() + READ_S

    async def _begin(self, held: Held) -> None:
        held.connection.begin()

    async def _send(self, router: Running, content: bytes, session: str) -> Held:
        await asyncio.sleep(self._read_s - self._loop.time())
        if router.pid not in self._routers:
            self._routers[router.pid] = router
            self._quiescence.close()
            self._quiescence = Quiescence([pid for one in self._routers.values() for pid in one.pids()])
        await self._quiescence.wait()
        self._arrived = self._loop.create_future()
        answer = self._loop.create_task(_post(router.port, content, session))
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
        if answer.status != 200 or "[DONE]" not in answer.text:
            raise WarmrouteError(f"a client got {_describe(answer)}")

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _with_token_ids(event: Event) -> Event:
    if not isinstance(event, BlocksStored):
        return event
    return event._replace(token_ids=_token_ids(write_text(event.hashes)))


async def _post(port: int, content: bytes, session: str) -> Answer:
    """Send a chat on a connection of its own, since routers close those that idle."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: router\r\nconnection: close\r\ncontent-type: application/json\r\n"
        f"x-session-id: {session}\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    writer.write(head.encode() + content)
    answer = await reader.read()
    writer.close()
    status = answer.split(b" ", 2)[1:2]
    return Answer(int(status[0]) if status else 0, answer.decode(errors="replace"))


def _describe(answer: Answer) -> str:
    return f"{answer.status}: {answer.text[-200:]}"
