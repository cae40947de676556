"""Load for the tests of this folder: chats of several turns, each knowing what became of every request it sent.

A chat's prompts begin with its own words, so that no two share a block, and every turn sends the whole history back:
what one turn has cached, the next one hits. Nothing raises on an answer that is not 200: what may fail is the test's
to say.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar

import httpx

from tests.e2e.conftest import MODEL, Json, RouterClient

T = TypeVar("T")
PATH = "/v1/chat/completions"


class Said(NamedTuple):
    """One answer as the client saw it. `error` is the error object of the body, or of the event that ended a stream."""

    status: int
    text: str
    stream: bool
    error: Json | None
    headers: httpx.Headers

    @property
    def ok(self) -> bool:
        return self.status == 200 and self.error is None

    @property
    def target(self) -> str:
        return self.headers["x-warmroute-target"]

    @property
    def instance(self) -> str:
        return self.target.rpartition("/")[0]

    @property
    def record(self) -> str:
        return self.headers["x-warmroute-record"]


class Chat:
    """A conversation. A turn that fails leaves it as it was, as a user would try again."""

    def __init__(self, client: RouterClient, name: str, words: int = 60) -> None:
        self.client = client
        self._messages: list[Json] = []
        self._opening = " ".join(f"{name} {number}" for number in range(words // 2))

    async def turn(self, *, stream: bool = False, forget: bool = False, **fields: Any) -> Said:
        """`forget`: the same turn will be asked again."""
        question = {"role": "user", "content": f"{self._opening} go on" if not self._messages else "And then, why so?"}
        said = await ask(self.client, [*self._messages, question], stream=stream, **fields)
        if said.ok and not forget:
            self._messages += [question, {"role": "assistant", "content": said.text}]
        return said


async def ask(client: RouterClient, messages: Sequence[Json], *, stream: bool = False, **fields: Any) -> Said:
    body = {"model": MODEL, "messages": list(messages), "stream": stream, "max_tokens": 12} | fields
    async with client.http.stream("POST", PATH, json=body) as answer:
        if answer.headers["content-type"].startswith("text/event-stream"):
            text, error = await _read_events(answer)
        else:
            whole = json.loads(await answer.aread())
            error = whole.get("error")
            text = "" if error else whole["choices"][0]["message"]["content"]
        return Said(answer.status_code, text, stream, error, answer.headers)


async def _read_events(answer: httpx.Response) -> tuple[str, Json | None]:
    """To its very end. Fails on one without `[DONE]` and without an error: nobody could tell that it was cut."""
    events = [line[6:] async for line in answer.aiter_lines() if line.startswith("data: ")]
    last = events.pop()
    error = None if last == "[DONE]" else json.loads(last)["error"]
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices), error


def chats(client: RouterClient, name: str, count: int) -> list[Chat]:
    return [Chat(client, f"{name}{number}") for number in range(count)]


async def crowd(talks: Sequence[Chat], turns: int, **fields: Any) -> list[Said]:
    """All at once, each in its own time; every other one streams."""

    async def talk(chat: Chat, stream: bool) -> list[Said]:
        return [await chat.turn(stream=stream, **fields) for _ in range(turns)]

    said = await asyncio.gather(*(talk(chat, number % 2 == 1) for number, chat in enumerate(talks)))
    return [one for each in said for one in each]


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, T]) -> AsyncIterator[asyncio.Task[T]]:
    """`work` goes on while the block runs, and not a moment longer."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class Promise(NamedTuple):
    """What the index said the chosen target holds (None: it has no events), and what the engine reported."""

    predicted: int | None
    delivered: int


async def promises(client: RouterClient, said: Iterable[Said]) -> list[Promise]:
    records = [await client.record(one.record) for one in said]
    return [Promise(record["attempts"][-1]["predicted_tokens"], record["cached_tokens"]) for record in records]


def kept(promised: Sequence[Promise]) -> bool:
    """Every one a real hit, and foretold to the token. Something must have been promised at all."""
    return bool(promised) and all(one.predicted == one.delivered > 0 for one in promised)
