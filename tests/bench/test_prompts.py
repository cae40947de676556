"""The benchmark's chats have the token counts that they say, or no router could agree with them."""

from __future__ import annotations

import json

import pytest

from router.clock import SystemClock
from router.config.schema import TokenizerSource
from router.lab.emulator.vocabulary import DATA
from router.prompt.api.parse import ReadOptions, read_prompt
from router.prompt.prompt import Chat as Source
from router.prompt.tokenization.model_folder import load
from tests.bench import answers
from tests.bench.asking import PATH
from tests.bench.prompts import Chat, Words


@pytest.fixture(scope="module")
def words() -> Words:
    return Words(DATA)


def router_counts(chat: Chat) -> int:
    local = load(TokenizerSource(path=str(DATA)), "tokenizers.bench", SystemClock().wall)
    options = ReadOptions(strip_fields=frozenset(), inject_usage=False)
    source = read_prompt(PATH, "application/json", chat.body(), options).source
    assert isinstance(source, Source)
    return len(local.tokenize(source))


def test_a_chat_counts_its_tokens_as_the_router_does_turn_by_turn(words: Words) -> None:
    chat = Chat(words, 5000, seed=1)
    assert chat.tokens == pytest.approx(5000, rel=0.03)
    assert router_counts(chat) == chat.tokens
    before = chat.tokens
    chat.turn(1000)
    assert chat.tokens - before == pytest.approx(1000, rel=0.1)
    assert router_counts(chat) == chat.tokens == answers.prompt_tokens(chat.body())


def test_a_turn_begins_with_all_that_was_said_before(words: Words) -> None:
    chat = Chat(words, 800, seed=2)
    before = chat.rendered().removesuffix("<|im_start|>assistant\n")
    chat.turn(100)
    assert chat.rendered().startswith(before)
    roles = [message["role"] for message in json.loads(chat.body())["messages"]]
    assert roles[-1] == "user"


def test_the_same_seed_says_the_same_and_another_one_something_else(words: Words) -> None:
    assert Chat(words, 200, seed=3).body() == Chat(words, 200, seed=3).body()
    assert Chat(words, 200, seed=3).body() != Chat(words, 200, seed=4).body()


def test_the_smallest_chat_is_one_question(words: Words) -> None:
    chat = Chat(words, 1, seed=5)
    assert len(json.loads(chat.body())["messages"]) == 1
    assert router_counts(chat) == chat.tokens
