"""Both forms of a conversation against an emulated engine, and turns as chats: what stays and what is rendered anew.

The next turn hits what the one before it left in the cache. In the tests of chats one word is one token.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.clock import SystemClock
from router.lab.loadgen.client import ClientAnswer, ClientFailure, LoadClient, SessionName
from router.lab.loadgen.conversations import (
    ChatMessage,
    Conversation,
    TextConversation,
    TextGenerator,
    TokenConversation,
    next_messages,
)
from router.lab.workloads.model import Session, Span, Turn
from router.lab.workloads.presets import CODEX, SCALING, AgentsWorkload
from tests.fakes.engines import FakeEngine, engine

FIRST = Turn(0, (Span(1, 100), Span(2, 300)), 20, 0.0)
SECOND = Turn(420, (Span(3, 50),), 20, 0.0)  # all of it is kept
TEXTS = TextGenerator(3)
SYSTEM, OWN, MORE = Span(1, 10), Span(2, 20), Span(3, 30)
OPENING = Turn(0, (SYSTEM, OWN), 8, 0.0)
ANSWER = ChatMessage("assistant", "a b c d e f g h", 8)


async def answer_to(talk: Conversation, client: LoadClient, turn: Turn) -> ClientAnswer:
    talk.prepare(turn)
    answer = await talk.send(client, SessionName("session-7"))
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
        assert isinstance(await talk.send(client, SessionName("s")), ClientFailure)


def text(span: Span, begin: int = 0, end: int | None = None) -> str:
    return "".join(TEXTS.generate(span)[begin:end])


def opened() -> list[ChatMessage]:
    """10 tokens of system, 20 of the user, 8 of an answer: 38."""
    return [*next_messages([], OPENING, TEXTS), ANSWER]


def test_what_sessions_share_is_the_system_prompt() -> None:
    assert next_messages([], OPENING, TEXTS) == [
        ChatMessage("system", text(SYSTEM), 10),
        ChatMessage("user", text(OWN), 20),
    ]


def test_a_prompt_of_one_span_is_the_users() -> None:
    assert next_messages([], Turn(0, (OWN,), 8, 0.0), TEXTS) == [ChatMessage("user", text(OWN), 20)]


def test_prompts_of_a_trace_share_text_where_they_share_blocks() -> None:
    blocks = [Span(number, 16) for number in range(5)]
    one, other = (next_messages([], Turn(0, (*blocks[:4], Span(last, 9)), 8, 0.0), TEXTS) for last in (77, 78))
    shared = "".join(map(text, blocks[1:4]))
    assert one[0] == other[0] == ChatMessage("system", text(blocks[0]), 16)
    assert one[1].text.startswith(shared)
    assert other[1].text.startswith(shared)
    assert one[1].text != other[1].text


def test_where_all_is_kept_the_answer_goes_back_as_it_was_given() -> None:
    context = opened()
    assert next_messages(context, Turn(38, (MORE,), 8, 0.0), TEXTS) == [*context, ChatMessage("user", text(MORE), 30)]


def test_a_tail_within_the_answer_is_rendered_anew() -> None:
    # 32 of 38 kept: 2 of the answer's 8 stay, 6 come from the fresh 30, and 24 are the next question
    changed = ChatMessage("assistant", "a b" + text(MORE, 0, 6), 8)
    following = next_messages(opened(), Turn(32, (MORE,), 8, 0.0), TEXTS)
    assert following == [*opened()[:2], changed, ChatMessage("user", text(MORE, 6, 30), 24)]


def test_behind_a_change_in_the_question_the_answer_stands_as_it_was_given() -> None:
    # 25 of 38 kept: 15 of the user's 20 stay and 5 are new; the answer's 8 are sent again; 30 - 13 = 17 are asked
    changed = ChatMessage("user", text(OWN, 0, 15) + text(MORE, 0, 5), 20)
    following = next_messages(opened(), Turn(25, (MORE,), 8, 0.0), TEXTS)
    assert following == [opened()[0], changed, ANSWER, ChatMessage("user", text(MORE, 5, 22), 17)]


def test_a_context_that_is_cut_back_goes_on_with_the_question() -> None:
    # 25 kept of 38, and 7 fresh tokens do not stand for the 13 that are gone
    few = Span(9, 7)
    following = next_messages(opened(), Turn(25, (few,), 8, 0.0), TEXTS)
    assert following == [opened()[0], ChatMessage("user", text(OWN, 0, 15) + text(few), 22)]


def test_a_turn_that_keeps_nothing_begins_anew() -> None:
    assert next_messages(opened(), OPENING, TEXTS) == next_messages([], OPENING, TEXTS)


@given(st.sampled_from([CODEX, SCALING]), st.integers(0, 1000), st.floats(0.8, 2.0))
def test_roles_alternate_and_sizes_are_the_workloads(preset: AgentsWorkload, seed: int, per_word: float) -> None:
    scaled = preset.scale(tokens=0.02, sessions=1 / preset.sessions, turns=6 / preset.turns.median)
    talked_through(scaled.workload(seed).sessions[0], TextGenerator(seed, per_word))


def talked_through(session: Session, texts: TextGenerator) -> None:
    context: list[ChatMessage] = []
    for turn in session.turns:
        before, context = context, next_messages(context, turn, texts)
        roles = [message.role for message in context]
        assert roles[0] == "system"
        assert roles[1::2] == ["user"] * len(roles[1::2])
        assert roles[2::2] == ["assistant"] * len(roles[2::2])
        assert roles[-1] == "user"
        assert sum(message.tokens for message in context) == turn.prompt_tokens
        together, kept = "".join(m.text for m in context), "".join(m.text for m in before)
        # Each of a message's spans is rounded to words, and each cut.
        words = max(0, texts.count_words(turn.context_tokens) - 4 * len(context))
        assert together.split()[:words] == kept.split()[:words]
        context = [
            *context,
            ChatMessage("assistant", "".join(texts.generate_words(99, turn.output_tokens)), turn.output_tokens),
        ]
