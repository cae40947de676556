"""Asking an engine: what is sent, what each kind of answer means, and how many may be asked at once."""

from __future__ import annotations

import asyncio
import json
from array import array

import pytest

from router.backends.fetch import HttpAnswer
from router.backends.remote_tokenizer import IN_FLIGHT, EngineTokenizer

# recorded from vLLM 0.32
TOKENIZED = b'{"count":11,"max_model_len":16384,"tokens":[1,1505,201,1785,2,201,1,3401,632,849,201],"token_strs":null}'


class Engine:
    """Answers as told; counts who is waiting."""

    def __init__(self, answer: HttpAnswer | None) -> None:
        self.answer = answer
        self.asked: list[tuple[str, str, dict[str, object]]] = []
        self.waiting = self.most_waiting = 0
        self.open = asyncio.Event()
        self.open.set()
        self.full = asyncio.Event()

    async def __call__(
        self, instance: str, path: str, body: bytes | None = None, *, timeout_s: float, limit_bytes: int = 0
    ) -> HttpAnswer | None:
        self.asked.append((instance, path, json.loads(body or b"null")))
        self.waiting += 1
        self.most_waiting = max(self.waiting, self.most_waiting)
        if self.waiting == IN_FLIGHT:
            self.full.set()
        await self.open.wait()
        self.waiting -= 1
        return self.answer


async def test_the_question_and_the_ids() -> None:
    engine = Engine(HttpAnswer(200, TOKENIZED))
    remote = EngineTokenizer(engine)
    ids = await remote.tokenize({"prompt": "x"}, "m", ["a", "b"], 1.0)
    await remote.tokenize({"prompt": "x"}, "m", ["a", "b"], 1.0)
    assert ids == array("I", [1, 1505, 201, 1785, 2, 201, 1, 3401, 632, 849, 201])
    assert [asked[1:] for asked in engine.asked] == [("/tokenize", {"model": "m", "prompt": "x"})] * 2
    assert {asked[0] for asked in engine.asked} == {"a", "b"}


@pytest.mark.parametrize(
    ("answer", "trouble"),
    [
        (None, "tokenizer_silent"),
        (HttpAnswer(503, b""), "tokenizer_silent"),
        (HttpAnswer(400, TOKENIZED), "tokenizer_refused"),
        (HttpAnswer(200, b"nonsense"), "tokenizer_refused"),
        (HttpAnswer(200, b'{"tokens":[-1]}'), "tokenizer_refused"),
    ],
)
async def test_trouble(answer: HttpAnswer | None, trouble: str) -> None:
    assert await EngineTokenizer(Engine(answer)).tokenize({}, "m", ["a"], 1.0) == trouble


async def test_nobody_to_ask() -> None:
    engine = Engine(None)
    assert await EngineTokenizer(engine).tokenize({}, "m", [], 1.0) == "tokenizer_silent"
    assert engine.asked == []


async def test_an_engine_that_hangs_is_silent() -> None:
    engine = Engine(HttpAnswer(200, TOKENIZED))
    engine.open.clear()
    assert await EngineTokenizer(engine).tokenize({}, "m", ["a"], 0.01) == "tokenizer_silent"


async def test_questions_are_bounded_and_waiting_for_a_turn_as_well() -> None:
    engine = Engine(HttpAnswer(200, TOKENIZED))
    engine.open.clear()
    remote = EngineTokenizer(engine)
    first = [asyncio.ensure_future(remote.tokenize({}, "m", ["a"], 60.0, str(n))) for n in range(IN_FLIGHT)]
    await engine.full.wait()
    assert await remote.tokenize({}, "m", ["a"], 0.01) == "tokenizer_busy"
    assert engine.most_waiting == IN_FLIGHT
    engine.open.set()
    assert all(isinstance(ids, array) for ids in await asyncio.gather(*first))
    assert isinstance(await remote.tokenize({}, "m", ["a"], 1.0), array)


async def test_one_client_leaves_requests_in_flight_to_others() -> None:
    engine = Engine(HttpAnswer(200, TOKENIZED))
    engine.open.clear()
    remote = EngineTokenizer(engine)
    greedy = [asyncio.ensure_future(remote.tokenize({}, "m", ["a"], 60.0, "greedy")) for _ in range(100)]
    others = [asyncio.ensure_future(remote.tokenize({}, "m", ["a"], 60.0, name)) for name in ("b", "c", "d")]
    await asyncio.sleep(0)
    assert (engine.waiting, len(engine.asked)) == (IN_FLIGHT * 4 // 5 + 3, IN_FLIGHT * 4 // 5 + 3)
    engine.open.set()
    answers = await asyncio.gather(*greedy, *others)
    assert all(isinstance(ids, array) for ids in answers)


IDS = array("I", [5, 6, 7])


@pytest.mark.parametrize(
    ("answer", "generated"),
    [
        (b'{"usage":{"prompt_tokens":3},"prompt_token_ids":[5,6,7],"choices":[{}]}', (IDS, 3)),
        (b'{"usage":{"prompt_tokens":3},"choices":[{"prompt_token_ids":[5,6,7]}]}', (IDS, 3)),
        (b'{"usage":{"prompt_tokens":3},"choices":[{"text":"x"}]}', (None, 3)),
        (b'{"choices":[]}', (None, None)),
        (b'{"prompt_token_ids":[-1]}', (None, None)),
        (b'{"prompt_token_ids":["a"]}', (None, None)),
        (b"nonsense", (None, None)),
        (b"[" * 100_000, (None, None)),
    ],
)
async def test_the_prompt_that_an_answer_was_generated_from(answer: bytes, generated: object) -> None:
    engine = Engine(HttpAnswer(200, answer))
    assert await EngineTokenizer(engine).generate_at("a", "/v1/chat/completions", b'{"x":1}', 1.0) == generated
    assert engine.asked == [("a", "/v1/chat/completions", {"x": 1})]


@pytest.mark.parametrize(
    ("answer", "trouble"),
    [
        (None, "tokenizer_silent"),
        (HttpAnswer(503, b""), "tokenizer_silent"),
        (HttpAnswer(429, b""), "tokenizer_silent"),
        (HttpAnswer(400, b""), "tokenizer_refused"),
    ],
)
async def test_no_answer_that_generates(answer: HttpAnswer | None, trouble: str) -> None:
    assert await EngineTokenizer(Engine(answer)).generate_at("a", "/v1/completions", b"{}", 1.0) == trouble


@pytest.mark.parametrize(
    ("answer", "rendered"),
    [
        (HttpAnswer(200, b'{"token_ids":[5,6,7],"features":null}'), (IDS, 3)),
        (HttpAnswer(200, b'[{"token_ids":[5,6,7]}]'), (IDS, 3)),
        (HttpAnswer(200, b'[{"token_ids":[5]},{"token_ids":[6]}]'), None),
        (HttpAnswer(200, b"[]"), None),
        (HttpAnswer(200, b'{"token_ids":null}'), None),
        (HttpAnswer(403, b'{"token_ids":[5,6,7]}'), None),
        (HttpAnswer(404, b""), None),
        (None, None),
    ],
)
async def test_the_prompt_that_would_be_generated_from(answer: HttpAnswer | None, rendered: object) -> None:
    engine = Engine(answer)
    assert await EngineTokenizer(engine).render_at("a", "/v1/completions", b"{}", 1.0) == rendered
    assert engine.asked == [("a", "/v1/completions/render", {})]


@pytest.mark.parametrize(
    ("answer", "asleep"),
    [
        (HttpAnswer(200, b'{"is_sleeping":true}'), True),
        (HttpAnswer(200, b'{"is_sleeping":false}'), False),
        (HttpAnswer(200, b"true"), False),
        (HttpAnswer(404, b'{"is_sleeping":true}'), False),
        (None, False),
    ],
)
async def test_sleeping_engines(answer: HttpAnswer | None, asleep: bool) -> None:
    assert await EngineTokenizer(Engine(answer)).is_asleep("a", 1.0) is asleep
