"""The request with which another engine carries an answer on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from router.backends.vllm.continuation import continuation_body, text_continuation_body
from router.prompt.prompt import Endpoint

CHAT = {"model": "m", "messages": [{"role": "user", "content": "é"}], "stream": True, "temperature": 0.5}
COMPLETION = {"model": "m", "prompt": "text", "stream": True}


def rest(endpoint: Endpoint, body: dict[str, Any], tokens: int = 3) -> Any:
    made = continuation_body(endpoint, json.dumps(body).encode(), b"1,2,30,40,50", tokens)
    return made if isinstance(made, str) else json.loads(made)


def test_a_chat_keeps_its_messages_and_gets_the_ids_beside_them() -> None:
    params = {"kv_transfer_params": {"prompt_token_ids": [1, 2, 30, 40, 50]}}
    assert rest(Endpoint.CHAT, CHAT) == CHAT | params


def test_a_completion_gets_the_ids_as_its_prompt() -> None:
    limit = {"max_tokens": 7}
    assert rest(Endpoint.COMPLETIONS, COMPLETION | {"max_tokens": 10}) == (
        COMPLETION | limit | {"prompt": [1, 2, 30, 40, 50]}
    )


@pytest.mark.parametrize("given", [{}, {"max_tokens": None}])
def test_a_completion_without_a_limit_has_that_of_the_api(given: dict[str, Any]) -> None:
    assert rest(Endpoint.COMPLETIONS, COMPLETION | given)["max_tokens"] == 13
    assert rest(Endpoint.COMPLETIONS, COMPLETION | given, tokens=16) == "length"


@pytest.mark.parametrize(
    ("limits", "left"),
    [
        ({"max_tokens": 10}, {"max_tokens": 7}),
        ({"max_completion_tokens": 4, "max_tokens": None}, {"max_completion_tokens": 1, "max_tokens": None}),
        ({"max_tokens": 10, "min_tokens": 5}, {"max_tokens": 7, "min_tokens": 2}),
        ({"min_tokens": 2}, {"min_tokens": 0}),
        ({}, {}),
    ],
)
def test_limits_count_what_was_said(limits: dict[str, Any], left: dict[str, Any]) -> None:
    made = rest(Endpoint.CHAT, CHAT | limits)
    assert {name: made[name] for name in ("max_tokens", "max_completion_tokens", "min_tokens") if name in made} == left


@pytest.mark.parametrize("limit", [3, 2])
def test_nothing_is_left_of_a_limit_that_is_reached(limit: int) -> None:
    assert rest(Endpoint.COMPLETIONS, COMPLETION | {"max_tokens": limit}) == "length"


TEXT = 'It said "so far" \n é'
OPEN = {"add_generation_prompt": False, "continue_final_message": True}


def rest_by_text(endpoint: Endpoint, body: dict[str, Any], text: str = TEXT, tokens: int = 3) -> Any:
    made = text_continuation_body(endpoint, json.dumps(body).encode(), json.dumps(text)[1:-1].encode(), tokens)
    return made if isinstance(made, str) else json.loads(made)


@pytest.mark.parametrize("given", [{}, {"add_generation_prompt": True, "continue_final_message": False}])
def test_by_text_a_chat_gets_the_answer_so_far_as_its_last_message_which_stays_open(given: dict[str, Any]) -> None:
    messages = [*CHAT["messages"], {"role": "assistant", "content": TEXT}]  # type: ignore[misc]
    asked = CHAT | given | {"return_token_ids": True, "max_tokens": 10, "min_tokens": 4}
    assert rest_by_text(Endpoint.CHAT, asked) == (
        CHAT | {"messages": messages} | OPEN | {"return_token_ids": False, "max_tokens": 7, "min_tokens": 1}
    )


def test_by_text_a_completion_gets_it_behind_its_prompt() -> None:
    made = rest_by_text(Endpoint.COMPLETIONS, COMPLETION)
    assert made == COMPLETION | {"prompt": "text" + TEXT, "max_tokens": 13, "return_token_ids": False}
    assert rest_by_text(Endpoint.COMPLETIONS, COMPLETION, "a")["prompt"] == "texta"


@pytest.mark.parametrize(("endpoint", "body"), [(Endpoint.CHAT, CHAT), (Endpoint.COMPLETIONS, COMPLETION)])
def test_by_text_a_request_whose_answer_has_no_text_yet_is_sent_again(endpoint: Endpoint, body: dict[str, Any]) -> None:
    asked = body | {"max_tokens": 5}
    assert rest_by_text(endpoint, asked, text="", tokens=0) == asked | {"return_token_ids": False}


@pytest.mark.parametrize(
    ("endpoint", "body", "text"),
    [
        (Endpoint.CHAT, CHAT | {"continue_final_message": True, "add_generation_prompt": False}, TEXT),
        (Endpoint.CHAT, CHAT | {"add_generation_prompt": False}, TEXT),
        (Endpoint.CHAT, CHAT, "end"),
        (Endpoint.COMPLETIONS, COMPLETION | {"prompt": [1, 2]}, TEXT),
        (Endpoint.COMPLETIONS, COMPLETION | {"prompt": ["text"]}, TEXT),
    ],
)
def test_text_is_not_enough_for_every_request(endpoint: Endpoint, body: dict[str, Any], text: str) -> None:
    assert rest_by_text(endpoint, body, text) == "no_token_ids"
    assert rest_by_text(endpoint, body | {"max_tokens": 3}, text) == "length"
