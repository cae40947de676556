"""Who takes ids: told by what an engine counts, asked again when it says nothing, forgotten when it leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from router.backends.fetch import HttpAnswer
from router.backends.token_ids import support
from router.backends.token_ids.support import TRIAL_PAUSES_S, TokenIdSupport, read_support
from router.prompt.tokenization.local_tokenizer import LocalTokenizer
from router.tasks import Tasks
from tests.fakes.engines import eventually


class Engine:
    """Answers what it is told to, in turn; the last answer for ever. `held`: no answer before it is set."""

    def __init__(self, *answers: HttpAnswer | int | None) -> None:
        self.answers = list(answers)
        self.asked: list[dict[str, Any]] = []
        self.held = asyncio.Event()
        self.held.set()

    async def __call__(
        self, instance: str, path: str, body: bytes | None = None, *, timeout_s: float, limit_bytes: int = 0
    ) -> HttpAnswer | None:
        self.asked.append(json.loads(body))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        await self.held.wait()
        return counting(answer) if isinstance(answer, int) else answer

    @property
    def ids(self) -> int:
        return len(self.asked[-1]["kv_transfer_params"]["prompt_token_ids"])


def counting(tokens: int) -> HttpAnswer:
    return HttpAnswer(200, json.dumps({"choices": [], "usage": {"prompt_tokens": tokens}}).encode())


class Scene:
    def __init__(self, engine: Engine, local: LocalTokenizer) -> None:
        self.engine = engine
        self.tasks = Tasks("test")
        self.takers = TokenIdSupport({"m": local}.get, engine, self.tasks)

    async def known(self, why: str) -> bool:
        """Whether it takes ids, once this is known of it."""
        await eventually(lambda: why in self.takers.report()["a"].why)
        return self.takers.accepts("a")


@pytest.fixture
async def scene(local: LocalTokenizer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    monkeypatch.setattr(support, "TRIAL_PAUSES_S", (0.0,) * len(TRIAL_PAUSES_S))
    monkeypatch.setattr(support, "AGAIN_AFTER_S", 0.0)
    made: list[Scene] = []

    def make(*answers: HttpAnswer | int | None) -> Scene:
        made.append(Scene(Engine(*answers), local))
        return made[-1]

    yield make
    for one in made:
        await one.tasks.close()


async def test_the_count_of_the_ids_shows_that_they_were_taken(scene: Any, local: LocalTokenizer) -> None:
    here = scene(2)  # "Hi" is two tokens for the tokenizer of these tests, "H" and "i"
    here.takers.on_joined("a", "m")
    assert not here.takers.accepts("a"), "it has not answered"
    assert await here.known("it takes token ids")
    assert here.engine.ids == 2
    assert len(here.engine.asked) == 1


async def test_any_other_count_shows_that_they_were_not(scene: Any) -> None:
    here = scene(12)
    here.takers.on_joined("a", "m")
    assert not await here.known("it does not look at token ids")
    assert len(here.engine.asked) == 1


@pytest.mark.parametrize("silence", [None, HttpAnswer(503, b""), HttpAnswer(500, b"")])
async def test_who_does_not_answer_is_asked_a_few_times(scene: Any, silence: HttpAnswer | None) -> None:
    here = scene(silence, silence, 2)
    here.takers.on_joined("a", "m")
    assert await here.known("it takes token ids")
    assert len(here.engine.asked) == 3
    never = scene(silence)
    never.takers.on_joined("a", "m")
    assert not await never.known("it did not answer")
    assert len(never.engine.asked) == len(TRIAL_PAUSES_S) == 4


async def test_one_that_falls_out_is_asked_again(scene: Any) -> None:
    here = scene(2)
    here.takers.on_joined("a", "m")
    assert await here.known("it takes token ids")
    here.engine.held.clear()
    here.takers.mark_failed("a", "m", "it refused")
    here.takers.mark_failed("a", "m", "and once more")
    await eventually(lambda: len(here.engine.asked) == 2)
    assert not await here.known("it refused")
    here.engine.held.set()
    assert await here.known("it takes token ids")
    assert len(here.engine.asked) == 2, "two prompts that fell out together are one reason to ask"


async def test_what_an_earlier_process_says_does_not_count(scene: Any) -> None:
    here = scene(2, 12)
    here.engine.held.clear()
    here.takers.on_joined("a", "m")
    await eventually(lambda: here.engine.asked)
    here.takers.on_joined("a", "m")
    await eventually(lambda: len(here.engine.asked) == 2)
    here.engine.held.set()
    assert not await here.known("it does not look at token ids")


async def test_one_that_left_is_forgotten_even_if_it_answers(scene: Any) -> None:
    here = scene(2)
    here.engine.held.clear()
    here.takers.on_joined("a", "m")
    await eventually(lambda: here.engine.asked)
    here.takers.forget("a")
    here.engine.held.set()
    await eventually(lambda: not here.tasks._running)
    assert here.takers.report() == {}


async def test_without_a_tokenizer_here_nobody_is_asked(scene: Any) -> None:
    here = scene(2)
    here.takers.on_joined("a", "m")
    here.takers.on_joined("a", "another")
    assert here.takers.report() == {}
    await eventually(lambda: not here.tasks._running)
    assert here.engine.asked == []


@pytest.mark.parametrize(
    ("status", "answer", "why"),
    [
        (400, b"{}", "it refuses token ids (400)"),
        (404, b"", "it refuses token ids (404)"),
        (200, b'{"choices":[]}', "its answer has no prompt_tokens"),
        (200, b'{"usage":{"prompt_tokens":3}}', "it does not look at token ids"),
    ],
)
def test_why_not(status: int, answer: bytes, why: str) -> None:
    assert read_support(status, answer, 2) == (False, why)
