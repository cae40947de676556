"""Ids before the first image: a true beginning of the client's prompt, whatever a template does about images."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from router.prompt.api.parse import ReadOptions, read_prompt
from router.prompt.prompt import Prompt, UnknownIds
from router.prompt.tokenization.proof import GeneratedPrompt, RemoteFailure
from router.prompt.tokenization.remote_ids import PICTURE, RemoteIds, find_remote_ids

IMAGE = {"type": "image_url", "image_url": {"url": "https://client.example/secret.png"}}
PLACEHOLDER = 0x110000  # no character's number
LONG = "a long system prompt " * 20
Message = dict[str, Any]
Rendered = Callable[[list[Message]], list[str | None]]  # pieces of text; None: an image


def parts(message: Message) -> list[str | None]:
    content = message["content"]
    content = content if isinstance(content, list) else [content]
    return [part if isinstance(part, str) else part.get("text") for part in content]


def in_place(messages: list[Message]) -> list[str | None]:
    return [piece for message in messages for piece in (f"<{message['role']}>", *parts(message), "</>\n")]


def in_front(messages: list[Message]) -> list[str | None]:
    """As of one string, and of templates that print all images of a message first."""
    return [
        piece
        for message in messages
        for piece in (f"<{message['role']}>", *sorted(parts(message), key=lambda part: part is not None), "</>\n")
    ]


def without_system(messages: list[Message]) -> list[str | None]:
    """As Llama 3.2's template, which leaves the system prompt out of a chat with images."""
    pieces = in_place(messages)
    return in_place([one for one in messages if one["role"] != "system"]) if None in pieces else pieces


def thoughts_of_last_turn(messages: list[Message]) -> list[str | None]:
    """As Qwen3's template, which leaves out what was thought before the last user message."""
    last = max(n for n, message in enumerate(messages) if message["role"] == "user")
    told = [
        message | {"content": "thought " + message["content"]}
        if n > last and message["role"] == "assistant"
        else message
        for n, message in enumerate(messages)
    ]
    return in_place(told)


class Engine:
    """Tokenises character by character; each image takes 5 ids, the router's own picture 3."""

    def __init__(self, render: Rendered) -> None:
        self.render = render
        self.asked: list[dict[str, Any]] = []
        self.failure: RemoteFailure | None = None

    def ids(self, messages: list[Message], image_tokens: int) -> array[int]:
        ids = array("I")
        for piece in self.render(messages):
            ids.extend([PLACEHOLDER] * image_tokens if piece is None else map(ord, piece))
        return ids

    async def tokenize(
        self, fields: dict[str, Any], model: str, instances: Sequence[str], timeout_s: float, client: str = ""
    ) -> array[int] | RemoteFailure:
        assert (model, list(instances), timeout_s) == ("m", ["a"], 1.0)
        self.asked.append(fields)
        return self.failure or self.ids(fields["messages"], 3)

    async def tokenize_at(self, instance: str, fields: Any, model: str, timeout_s: float) -> array[int] | RemoteFailure:
        raise NotImplementedError

    async def render_at(self, instance: str, path: str, body: bytes, timeout_s: float) -> GeneratedPrompt | None:
        raise NotImplementedError

    async def generate_at(
        self, instance: str, path: str, body: bytes, timeout_s: float
    ) -> GeneratedPrompt | RemoteFailure:
        raise NotImplementedError

    async def is_asleep(self, instance: str, timeout_s: float) -> bool:
        raise NotImplementedError

    async def detokenize(self, ids: Sequence[int], model: str, instances: Sequence[str]) -> str | None:
        raise NotImplementedError


def read(messages: list[Message]) -> Prompt:
    body = msgspec.json.encode({"model": "m", "messages": messages})
    return read_prompt("/v1/chat/completions", None, body, ReadOptions())


async def find(engine: Engine, messages: list[Message]) -> RemoteIds | UnknownIds:
    return await find_remote_ids(engine, read(messages), "m", ["a"], lambda: 1.0)


TURN = [{"role": "user", "content": "what is it?"}, {"role": "assistant", "content": "a fox"}]
SYSTEM = {"role": "system", "content": LONG}
SEE: Message = {
    "role": "user",
    "content": [{"type": "text", "text": "see the picture"}, IMAGE, {"type": "text", "text": "now"}],
}


@pytest.mark.parametrize("render", [in_place, in_front, without_system, thoughts_of_last_turn])
@pytest.mark.parametrize(
    "messages",
    [
        [SYSTEM, *TURN, SEE],
        [SYSTEM, SEE, *TURN, *TURN[:1]],
        [SYSTEM, *TURN, {"role": "user", "content": [IMAGE, IMAGE]}, *TURN, SEE],
        [SYSTEM, TURN[0], *TURN[1:] * 2, {"role": "tool", "content": [IMAGE]}, *TURN, SEE],
    ],
)
async def test_a_true_beginning_without_the_image(render: Rendered, messages: list[Message]) -> None:
    engine = Engine(render)
    found = await find(engine, messages)
    assert isinstance(found, RemoteIds)
    truth = engine.ids(messages, 5)
    assert found.ids == truth[: len(found.ids)]
    assert PLACEHOLDER not in found.ids
    assert found.complete is False
    assert all("client.example" not in str(fields) for fields in engine.asked)
    if render is in_place:
        assert len(found.ids) == truth.index(PLACEHOLDER), "up to the image itself"
    if render is in_front:
        assert len(found.ids) == truth.index(PLACEHOLDER)


async def test_every_way_to_write_an_image() -> None:
    engine = Engine(in_place)
    for image in (
        {"type": "input_image", "image_url": "https://client.example/a"},
        {"image_url": {"url": "https://client.example/a"}},
        {"type": "image_embeds", "image_embeds": "client.example"},
    ):
        found = await find(engine, [SYSTEM, {"role": "user", "content": ["see", image]}])
        assert isinstance(found, RemoteIds)
        assert engine.asked[-2]["messages"][1]["content"] == ["see", PICTURE]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_audio", "input_audio": {"data": "x"}},
        {"type": "video_url", "video_url": {"url": "x"}},
        {"audio_url": {"url": "x"}},
    ],
)
async def test_sounds_and_films_have_no_stand_in(part: Message) -> None:
    engine = Engine(in_place)
    assert await find(engine, [SYSTEM, SEE, {"role": "user", "content": [part]}]) == UnknownIds("media")
    assert engine.asked == []


async def test_an_engine_that_refuses_the_picture_is_asked_once() -> None:
    engine = Engine(in_place)
    engine.failure = "tokenizer_refused"
    assert await find(engine, [SYSTEM, SEE]) == UnknownIds("tokenizer_refused")
    assert len(engine.asked) == 1


async def test_a_template_that_prints_no_image_shows_nothing() -> None:
    engine = Engine(lambda messages: ["the same for all"])
    assert await find(engine, [SYSTEM, SEE]) == UnknownIds("media")


async def test_text_is_asked_for_as_it_is() -> None:
    engine = Engine(in_place)
    found = await find(engine, [SYSTEM, *TURN])
    assert found == RemoteIds(engine.ids([SYSTEM, *TURN], 5), True)
    assert [fields["messages"] for fields in engine.asked] == [[SYSTEM, *TURN]]
