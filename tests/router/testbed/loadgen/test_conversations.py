"""Both ways to say a turn, against an emulated engine: the next turn hits what the one before it left in the cache."""

from __future__ import annotations

import json

import pytest

from router.clock import SystemClock
from router.testbed.loadgen.client import ClientAnswer, ClientFailure, LoadClient
from router.testbed.loadgen.conversations import Conversation, TextConversation, TokenConversation
from router.testbed.loadgen.text import TextGenerator
from router.testbed.workloads import Span, Turn
from tests.fakes.engines import FakeEngine, engine

FIRST = Turn(0, (Span(1, 100), Span(2, 300)), 20, 0.0)
SECOND = Turn(420, (Span(3, 50),), 20, 0.0)  # all of it is kept


async def answer_to(talk: Conversation, client: LoadClient, turn: Turn) -> ClientAnswer:
    talk.prepare(turn)
    answer = await talk.ask(client, "session-7")
    assert isinstance(answer, ClientAnswer)
    return answer


def messages(fake: FakeEngine) -> list[list[dict[str, str]]]:
    return [json.loads(call.body)["messages"] for call in fake.seen("/v1/chat/completions")]


async def test_a_chat_goes_on_from_the_answer_as_it_was_given() -> None:
    async with engine(model="m") as fake, LoadClient(fake.url, "m", SystemClock()) as client:
        talk = TextConversation(TextGenerator(1))
        first, second = await answer_to(talk, client, FIRST), await answer_to(talk, client, SECOND)
        asked, later = messages(fake)
        assert [message["role"] for message in later] == ["system", "user", "assistant", "user"]
        assert later[:2] == asked
        assert later[2]["content"] == first.text
        assert {call.headers["x-session-id"] for call in fake.seen("/v1/chat/completions")} == {"session-7"}
    assert (first.output_tokens, second.output_tokens) == (20, 20)
    assert second.cached_tokens is not None
    assert second.cached_tokens > first.prompt_tokens  # the prompt, and what could be cached of the answer


async def test_ids_go_on_from_the_answers_own() -> None:
    async with engine(model="m") as fake, LoadClient(fake.url, "m", SystemClock()) as client:
        talk = TokenConversation(1)
        first, second = await answer_to(talk, client, FIRST), await answer_to(talk, client, SECOND)
        asked, later = (json.loads(call.body)["prompt"] for call in fake.seen("/v1/completions"))
    assert (first.prompt_tokens, second.prompt_tokens) == (400, 470)
    assert later[:420] == [*asked, *first.token_ids]
    assert second.cached_tokens == 416  # 26 blocks of 16 in 419: the answer's last token has no KV


@pytest.mark.parametrize("talk", [TextConversation(TextGenerator(1)), TokenConversation(1)], ids=["text", "ids"])
async def test_a_refusal_is_a_value(talk: Conversation) -> None:
    async with engine(model="m") as fake, LoadClient(fake.url, "m", SystemClock()) as client:
        fake.faults(refuse=True)
        talk.prepare(FIRST)
        assert isinstance(await talk.ask(client, "s"), ClientFailure)
