"""Which answers may be carried on by another engine, and why the others may not: one request for each reason."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest

from router.prompt.answer_tail import StopStrings
from router.prompt.api.continuable import Uncontinuable, find_refusal, has_media
from router.prompt.api.parse import ReadOptions, RequestHeaders, read_prompt
from router.prompt.body_rewrite import requests_usage
from router.prompt.prompt import Endpoint, Prompt

TEXT = [{"role": "user", "content": 'What is an "image_url"?'}]
IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:..."}}]}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
STRICT = {"type": "function", "function": {"name": "f", "parameters": {}, "strict": True}}

REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("several_answers", {"n": 2}),
    ("several_answers", {"best_of": 3}),
    ("several_answers", {"prompt": ["a", "b"]}),
    ("several_answers", {"prompt": [[1, 2], [3]]}),
    ("beam_search", {"use_beam_search": True}),
    ("guided", {"response_format": {"type": "json_object"}}),
    ("guided", {"structured_outputs": {"regex": "a+"}}),
    ("guided", {"guided_json": {"type": "object"}}),
    ("guided", {"guided_regex": "a+"}),
    ("guided", {"guided_choice": ["a"]}),
    ("guided", {"guided_grammar": "root ::= 'a'"}),
    ("guided", {"structural_tag": "{}"}),
    ("guided", {"tools": [STRICT]}),
    ("forced_tool", {"tools": [TOOL], "tool_choice": "required"}),
    ("forced_tool", {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}}),
    ("seed", {"seed": 7}),
    ("seed", {"seed": 7, "temperature": 0.1}),
    ("penalties", {"presence_penalty": 0.5}),
    ("penalties", {"frequency_penalty": -0.5}),
    ("penalties", {"bad_words": ["x"]}),
    ("stop_strings", {"stop": "END"}),
    ("stop_strings", {"stop": ["END", "FIN"], "temperature": 0.1}),
    ("stop_strings", {"stop": "x" * 65, "temperature": 0}),
    ("stop_strings", {"stop": "END", "temperature": 0, "tools": [TOOL]}),
    ("stop_strings", {"stop": "END", "temperature": 0, "return_token_ids": True}),
    ("logprobs", {"logprobs": True, "top_logprobs": 3}),
    ("logprobs", {"logprobs": 1, "prompt": "text"}),
    ("logprobs", {"prompt_logprobs": 1}),
    ("usage_per_chunk", {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}),
    ("prompt", {"echo": True}),
    ("prompt", {"suffix": "x"}),
    ("prompt", {"truncate_prompt_tokens": 5}),
    ("prompt", {"prompt_embeds": "AAAA"}),
    ("transfer", {"kv_transfer_params": {"do_remote_prefill": True}}),
    ("unknown_field", {"a_field_of_a_later_version": 1}),
]

ALLOWED: list[dict[str, Any]] = [
    {},
    {"n": 1, "best_of": None, "use_beam_search": False, "logprobs": False, "top_logprobs": 0, "echo": False},
    {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "repetition_penalty": 1.1, "min_tokens": 3},
    {"temperature": 0, "seed": 7},
    {"temperature": 0, "stop": "x" * 64, "include_stop_str_in_output": True},
    {"tools": [TOOL], "stop": []},
    {"presence_penalty": 0.0, "frequency_penalty": 0, "stop": None, "response_format": None},
    {"stop": [], "stop_token_ids": [7], "response_format": {"type": "text"}},
    {"tools": [TOOL], "tool_choice": "auto", "parallel_tool_calls": True},
    {"stream_options": {"include_usage": True}, "return_token_ids": True},
    {"stream_options": {"continuous_usage_stats": True}},  # without include_usage it does nothing
    {"messages": TEXT},
    {"prompt": "text"},
    {"prompt": [1, 2, 3]},
    {"user": "me", "metadata": {"a": "b"}, "cache_salt": "s", "priority": 1},
]


def refusal(fields: dict[str, Any]) -> str | None:
    completion = not fields.keys().isdisjoint({"prompt", "suffix", "prompt_embeds"})
    endpoint = Endpoint.COMPLETIONS if completion else Endpoint.CHAT
    said: dict[str, Any] = {"prompt": "text"} if completion else {"messages": TEXT}
    body = json.dumps({"model": "m", "stream": True} | said | fields, separators=(",", ":")).encode()
    return read_prompt(endpoint.value, None, body, ReadOptions(frozenset(), continues=True)).uncontinuable


@pytest.mark.parametrize(("reason", "fields"), REFUSED)
def test_what_is_refused(reason: str, fields: dict[str, Any]) -> None:
    assert refusal(fields) == reason
    assert refusal({}) is None


@pytest.mark.parametrize("fields", ALLOWED)
def test_what_is_carried_on(fields: dict[str, Any]) -> None:
    assert refusal(fields) is None


def test_media_in_a_message_is_seen_and_text_that_quotes_its_type_is_none() -> None:
    assert has_media(json.dumps({"messages": IMAGE}).encode())
    assert not has_media(json.dumps({"messages": TEXT}).encode())


def test_every_reason_is_tested() -> None:
    elsewhere = {"off", "opted_out", "endpoint"}
    assert {reason for reason, _ in REFUSED} | elsewhere == set(get_args(Uncontinuable))


def test_what_is_known_of_stop_strings() -> None:
    for fields, stop in (
        ({"stop": ["END", "é"]}, StopStrings(3, included=False)),
        ({"stop": "é\n", "include_stop_str_in_output": True}, StopStrings(2, included=True)),
        ({"stop": []}, None),
        ({}, None),
    ):
        assert read({"stream": True, "temperature": 0} | fields).stop == stop


def test_other_endpoints_are_not_carried_on() -> None:
    assert {endpoint: find_refusal(endpoint, {}) for endpoint in Endpoint} == {
        Endpoint.CHAT: None,
        Endpoint.COMPLETIONS: None,
        **dict.fromkeys((Endpoint.MESSAGES, Endpoint.RESPONSES, Endpoint.OTHER), "endpoint"),
    }


def read(body: dict[str, Any], *, continues: bool = True, header: bool = True) -> Prompt:
    raw = json.dumps({"model": "m", "messages": TEXT} | body).encode()
    options = ReadOptions(continues=continues)
    return read_prompt(Endpoint.CHAT.value, None, raw, options, RequestHeaders(continues=header))


def test_only_a_stream_that_can_be_carried_on_asks_for_ids() -> None:
    asking = read({"stream": True})
    assert (asking.uncontinuable, asking.hide_ids, asking.hide_usage) == (None, True, True)
    assert json.loads(asking.body)["return_token_ids"] is True
    assert requests_usage(asking.body)
    for given, hidden in ((True, False), (False, True), (None, True)):
        own = read({"stream": True, "return_token_ids": given})
        assert (own.hide_ids, json.loads(own.body)["return_token_ids"]) == (hidden, True)
    for fields, options, reason in (
        ({"stream": False}, {}, "off"),
        ({"stream": True}, {"continues": False}, "off"),
        ({"stream": True}, {"header": False}, "opted_out"),
        ({"stream": True, "seed": 1}, {}, "seed"),
    ):
        other = read(fields, **options)
        assert (other.uncontinuable, other.hide_ids) == (reason, False)
        assert "return_token_ids" not in json.loads(other.body)


@pytest.mark.parametrize(("options", "asked"), [(None, False), ({"include_usage": False}, False), ({}, False)])
def test_whether_the_client_asks_for_usage(options: Any, asked: bool) -> None:
    assert requests_usage(json.dumps({"stream_options": options}).encode()) == asked
    assert not requests_usage(b"{}")
