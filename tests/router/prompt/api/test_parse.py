"""Bodies become prompts, or refusals that name the field."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import BadRequest
from router.prompt.api import parse, size_limits
from router.prompt.api.lineage import make_lineage
from router.prompt.api.openai import MAX_ANSWERS
from router.prompt.api.parse import ReadOptions, RequestHeaders, read_prompt
from router.prompt.body_rewrite import MAX_MEMBERS
from router.prompt.prompt import Chat, Endpoint, Ids, Prompt, Text, UnknownIds, Unread

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
USER = [{"role": "user", "content": "hi"}]


def read(path: str, fields: dict[str, Any], *, header: str | None = None, **options: Any) -> Prompt:
    headers = RequestHeaders(make_lineage(header) if header else None)
    return read_prompt(path, "application/json", json.dumps(fields).encode(), ReadOptions(**options), headers)


@pytest.mark.parametrize("continues", [False, True])
@pytest.mark.parametrize(
    ("fields", "several"),
    [
        ({}, False), ({"n": 1}, False), ({"n": None}, False), ({"n": "1"}, False), ({"best_of": 1}, False),
        ({"use_beam_search": False}, False), ({"n": 2}, True), ({"n": "3"}, True), ({"n": 4.0}, True),
        ({"best_of": 2}, True), ({"n": 1, "best_of": 2}, True), ({"use_beam_search": True}, True),
    ],
)  # fmt: skip
def test_whether_a_prompt_has_several_answers(fields: dict[str, Any], several: bool, continues: bool) -> None:
    chat = read(CHAT, {"messages": USER, "stream": True} | fields, continues=continues)
    assert chat.several_answers is several
    assert read(COMPLETIONS, {"prompt": "hi"} | fields, continues=continues).several_answers is several


@pytest.mark.parametrize(
    ("fields", "answers"),
    [
        ({}, 1), ({"n": None}, 1), ({"n": 3}, 3), ({"n": "3"}, 3), ({"best_of": 4, "n": 2}, 4), ({"n": -2}, 1),
        ({"n": "x"}, 1), ({"n": [2]}, 1), ({"n": 10**40}, 1), ({"use_beam_search": True, "n": 5}, 5),
        ({"prompt": "a"}, 1), ({"prompt": ["a"]}, 1), ({"prompt": ["a", "b", ""]}, 3), ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": [[1], [2, 3]]}, 2), ({"prompt": ["a", "b"], "n": 3}, 6), ({"n": 99_999_999}, MAX_ANSWERS),
    ],
)  # fmt: skip
def test_how_many_answers_the_engine_makes(fields: dict[str, Any], answers: int) -> None:
    assert read(COMPLETIONS, {"prompt": "hi"} | fields).answers == answers
    spaced = b'{"prompt": [\n "a" , "b" ]}'
    assert read_prompt(COMPLETIONS, "application/json", spaced, ReadOptions()).answers == 2
    if "prompt" not in fields:
        assert read(CHAT, {"messages": USER} | fields).answers == answers


@pytest.mark.parametrize(
    ("path", "fields", "endpoint", "kind"),
    [
        (CHAT, {"messages": USER}, Endpoint.CHAT, Chat),
        (COMPLETIONS, {"prompt": "hi"}, Endpoint.COMPLETIONS, Text),
        (COMPLETIONS, {"prompt": [1, 2]}, Endpoint.COMPLETIONS, Ids),
        (RESPONSES, {"input": "hi"}, Endpoint.RESPONSES, Chat),
        (MESSAGES, {"messages": USER, "max_tokens": 1}, Endpoint.MESSAGES, Chat),
    ],
)
def test_the_four_endpoints(path: str, fields: dict[str, Any], endpoint: Endpoint, kind: type) -> None:
    prompt = read(path, {"model": "m", "unheard_of": {"a": [1]}, **fields})
    assert (prompt.endpoint, prompt.model, type(prompt.source)) == (endpoint, "m", kind)
    assert json.loads(prompt.body)["unheard_of"] == {"a": [1]}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES, MESSAGES])
@pytest.mark.parametrize("model", [b"", b'"model":null,', b'"model":"",'])
def test_a_prompt_may_name_no_model(path: str, model: bytes) -> None:
    body = b'{%b"messages":[],"prompt":"x","input":"x"}' % model
    prompt = read_prompt(path, None, body, ReadOptions())
    assert (prompt.model, prompt.body) == (None, body)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, b"", None),
        (CHAT, b"not json", None),
        (CHAT, b"[]", None),
        (CHAT, b'"x"', None),
        (CHAT, '{"model":"m","messages":[]}'.encode("utf-16"), None),
        (CHAT, b'\xef\xbb\xbf{"model":"m","messages":[]}', None),
        (CHAT, b'{"model":"m","messages":' + b"[" * 100_000, None),
        (CHAT, b'{"model":7,"messages":[]}', "model"),
        (CHAT, b'{"model":"m"}', "messages"),
        (CHAT, b'{"model":"m","messages":null}', "messages"),
        (CHAT, b'{"model":"m","messages":"hi"}', "messages"),
        (CHAT, b'{"model":"m","messages":[],"stream":"maybe"}', "stream"),
        (CHAT, b'{"model":"m","messages":[],"cache_salt":1}', "cache_salt"),
        (CHAT, b'{"model":"m","messages":[],"cache_salt":"\xff"}', "cache_salt"),
        (CHAT, b'{"model":"m","messages":[],"stream":true,"stream_options":3}', "stream_options"),
        (CHAT, b'{"model":"m","messages":[],"chat_template_kwargs":3}', "chat_template_kwargs"),
        (COMPLETIONS, b'{"model":"m"}', "prompt"),
        (COMPLETIONS, b'{"model":"m","prompt":7}', "prompt"),
        (COMPLETIONS, b'{"model":"m","prompt":[-1]}', "prompt"),
        (COMPLETIONS, b'{"model":"m","prompt":[1,"a"]}', "prompt"),
        (COMPLETIONS, b'{"model":"m","prompt":[true]}', "prompt"),
        (COMPLETIONS, b'{"model":"m","prompt":[4294967296]}', "prompt"),
        (RESPONSES, b'{"model":"m"}', "input"),
        (RESPONSES, b'{"model":"m","input":{}}', "input"),
        (MESSAGES, b'{"model":"m"}', "messages"),
        (MESSAGES, b'{"model":"m","messages":[],"system":1}', "system"),
    ],
)
def test_refusals_name_the_field(path: str, body: bytes, param: str | None) -> None:
    with pytest.raises(BadRequest) as refusal:
        read_prompt(path, "application/json", body, ReadOptions())
    assert refusal.value.param == param
    assert param is None or param in refusal.value.message


@pytest.mark.parametrize(
    ("path", "fields", "reason"),
    [
        (CHAT, {"messages": USER, "chat_template": "{{ 7 }}"}, "client_template"),
        (CHAT, {"messages": USER, "chat_template_kwargs": {"chat_template": "x"}}, "client_template"),
        (CHAT, {"messages": USER, "prompt_logprobs": 0}, "prompt_logprobs"),
        (CHAT, {"messages": USER, "truncate_prompt_tokens": 5}, "truncated"),
        (COMPLETIONS, {"prompt": "a", "prompt_logprobs": 1}, "prompt_logprobs"),
        (COMPLETIONS, {"prompt": "a", "echo": True, "logprobs": 1}, "prompt_logprobs"),
        (COMPLETIONS, {"prompt": "a", "suffix": "b"}, "suffix"),
        (COMPLETIONS, {"prompt": "a", "truncate_prompt_tokens": -1}, "truncated"),
        (COMPLETIONS, {"prompt": None, "prompt_embeds": "b64"}, "prompt_embeds"),
        (COMPLETIONS, {"prompt": ["a", "b"]}, "many_prompts"),
        (COMPLETIONS, {"prompt": [[1], [2]]}, "many_prompts"),
        (COMPLETIONS, {"prompt": []}, "empty"),
        (RESPONSES, {"input": "a", "previous_response_id": "resp_1"}, "previous_response"),
        (CHAT, {"messages": [{"role": "user", "content": 7}]}, "content"),
        (CHAT, {"messages": USER, "tools": {}}, "tools"),
    ],
)
def test_what_cannot_be_matched_is_unknown_and_says_why(path: str, fields: dict[str, Any], reason: str) -> None:
    assert read(path, {"model": "m", **fields}).source == UnknownIds(reason)


@pytest.mark.parametrize(
    ("fields", "shows"),
    [
        ('"return_prompt_text":true', True),
        ('"return_prompt\\u005ftext":1', True),
        ('"return_prompt_text":false', False),
        ('"return_prompt_text":null', False),
        ('"user":{"return_prompt_text":true}', False),
        ('"stream":true', False),
    ],
)
def test_whether_the_answer_quotes_the_prompt(fields: str, shows: bool) -> None:
    body = f'{{"model":"m","messages":[],{fields}}}'.encode()
    assert read_prompt("/v1/chat/completions", None, body, ReadOptions()).returns_prompt_text is shows


def test_nulls_are_as_good_as_missing() -> None:
    nulls = dict.fromkeys(("tools", "chat_template", "chat_template_kwargs", "documents", "cache_salt", "stream"))
    prompt = read(CHAT, {"model": "m", "messages": USER, **nulls})
    assert isinstance(prompt.source, Chat)
    assert (prompt.stream, prompt.salt) == (False, None)


def test_echo_without_logprobs_and_n_are_fine() -> None:
    assert read(COMPLETIONS, {"model": "m", "prompt": ["a"], "echo": True, "n": 3}).source == Text("a", True)


def test_stripped_fields_leave_and_the_last_duplicate_counts() -> None:
    body = b'{"model":"a","kv\\u005ftransfer_params":{"do_remote_decode":true},"model":"b","messages":[]}'
    prompt = read_prompt(CHAT, None, body, ReadOptions())
    assert prompt.model == "b"
    assert json.loads(prompt.body) == {"model": "b", "messages": []}


def test_a_salt_that_the_operator_strips_is_not_read() -> None:
    prompt = read(CHAT, {"model": "m", "messages": USER, "cache_salt": "s"}, strip_fields=frozenset(["cache_salt"]))
    assert prompt.salt is None
    assert read(CHAT, {"model": "m", "messages": USER, "cache_salt": "s"}).salt == "s"


@pytest.mark.parametrize(
    ("options", "hide", "sent"),
    [
        ({}, True, {"include_usage": True}),
        ({"stream_options": None}, True, {"include_usage": True}),
        ({"stream_options": {"include_usage": False, "x": 1}}, True, {"include_usage": True, "x": 1}),
        ({"stream_options": {"include_usage": True}}, False, {"include_usage": True}),
    ],
)
@pytest.mark.parametrize("prompt_field", [(CHAT, {"messages": USER}), (COMPLETIONS, {"prompt": "a"})])
def test_usage_of_streams(
    prompt_field: tuple[str, dict[str, Any]], options: dict[str, Any], hide: bool, sent: dict[str, Any]
) -> None:
    path, fields = prompt_field
    prompt = read(path, {"model": "m", **fields, "stream": True, **options})
    assert (prompt.stream, prompt.hide_usage) == (True, hide)
    assert json.loads(prompt.body)["stream_options"] == sent


@pytest.mark.parametrize(
    ("path", "fields", "options"),
    [
        (CHAT, {"messages": USER}, {}),
        (CHAT, {"messages": USER, "stream": True}, {"inject_usage": False}),
        (RESPONSES, {"input": "a", "stream": True}, {}),
        (MESSAGES, {"messages": USER, "stream": True}, {}),
    ],
)
def test_usage_is_left_alone_elsewhere(path: str, fields: dict[str, Any], options: dict[str, Any]) -> None:
    body = json.dumps({"model": "m", **fields}).encode()
    prompt = read_prompt(path, None, body, ReadOptions(**options))
    assert prompt.body is body
    assert not prompt.hide_usage


@pytest.mark.parametrize(
    ("header", "fields", "session"),
    [
        ("h", {"session_id": "s", "user": "u"}, "h"),
        (None, {"session_id": "s", "user": "u"}, "s"),
        (None, {"user": "u", "metadata": {"user_id": "m"}}, "u"),
        (None, {"metadata": {"user_id": "m"}}, "m"),
        ("", {"session_id": "", "user": 7, "metadata": [1]}, None),
    ],
)
def test_session(header: str | None, fields: dict[str, Any], session: str | None) -> None:
    assert read(CHAT, {"model": "m", "messages": USER, **fields}, header=header).session == session


@pytest.mark.parametrize(
    ("path", "fields", "tokens"),
    [
        (CHAT, {"max_tokens": 5}, 5),
        (CHAT, {"max_tokens": 5, "max_completion_tokens": 7}, 7),
        (CHAT, {"max_tokens": 5, "max_completion_tokens": None}, 5),
        (CHAT, {"max_output_tokens": 5}, None),
        (COMPLETIONS, {"max_tokens": 5, "max_completion_tokens": 7}, 5),
        (COMPLETIONS, {"max_tokens": None}, None),
        (RESPONSES, {"max_output_tokens": 5, "max_tokens": 7}, 5),
        (MESSAGES, {"max_tokens": 5}, 5),
    ],
)
@pytest.mark.parametrize("want_source", [True, False])
def test_the_cap_on_the_answer_is_the_one_that_the_engine_takes(
    path: str, fields: dict[str, Any], tokens: int | None, want_source: bool
) -> None:
    asked = {CHAT: {"messages": USER}, MESSAGES: {"messages": USER}, RESPONSES: {"input": "a"}}.get(
        path, {"prompt": "a"}
    )
    assert read(path, {"model": "m", **asked, **fields}, want_source=want_source).output_tokens == tokens


@pytest.mark.parametrize("odd", [0, -1, 2**70, True, 1.5, "5", [5], {}, None])
def test_numbers_that_make_no_sense_are_the_engines_to_refuse(odd: Any) -> None:
    prompt = read(CHAT, {"model": "m", "messages": USER, "max_completion_tokens": odd, "priority": odd})
    assert prompt.output_tokens is None
    assert prompt.priority == (odd if odd in (0, -1) and odd is not True else None)
    assert json.loads(prompt.body)["priority"] == odd


def test_priority_is_read_unless_the_operator_strips_it() -> None:
    fields = {"model": "m", "messages": USER, "priority": -3}
    assert read(CHAT, fields).priority == -3
    stripped = read(CHAT, fields, strip_fields=frozenset(["priority"]))
    assert stripped.priority is None
    assert "priority" not in json.loads(stripped.body)
    assert read(CHAT, {"model": "m", "messages": USER}).priority is None


def test_objectives_come_with_the_headers() -> None:
    body = json.dumps({"model": "m", "messages": USER}).encode()
    prompt = read_prompt(CHAT, None, body, ReadOptions(), RequestHeaders(ttft="500", tpot="20.5"))
    assert (prompt.ttft_ms, prompt.tpot_ms) == (500.0, 20.5)
    prompt = read_prompt(CHAT, None, body, ReadOptions(), RequestHeaders(ttft="soon"))
    assert (prompt.ttft_ms, prompt.tpot_ms) == (None, None)


def test_the_prompt_is_not_read_when_nobody_needs_it() -> None:
    prompt = read(CHAT, {"model": "m", "messages": [7]}, want_source=False)
    assert isinstance(prompt.source, Unread)
    assert prompt.source.read(None).source == UnknownIds("content")
    with pytest.raises(BadRequest):
        read(CHAT, {"model": "m", "messages": 7}, want_source=False)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES, MESSAGES, "/v1/embeddings"])
def test_what_a_large_body_holds_is_bounded(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"model": "m", "messages": USER, "prompt": "a", "input": "a", "x": ["a"] * 300}
    assert read(path, fields).model == "m"
    monkeypatch.setattr(size_limits, "MAX_OBJECTS", 300)
    assert read(path, fields).model == "m"  # a short body is not counted
    monkeypatch.setattr(parse, "LARGE_BODY_BYTES", 1000)
    with pytest.raises(BadRequest) as refusal:
        read(path, fields)
    assert refusal.value.code == "too_many_values"


def test_what_a_prompt_of_a_shorter_body_holds_is_bounded() -> None:
    """Such a body is parsed, which takes milliseconds, but its messages are not converted."""
    prompt = read(CHAT, {"model": "m", "messages": [[]] * 100_001}, want_source=False)
    assert len(prompt.body) < size_limits.LARGE_BODY_BYTES
    assert isinstance(prompt.source, Unread)
    with pytest.raises(BadRequest) as refusal:
        prompt.source.read(None)
    assert refusal.value.code == "too_many_values"


@pytest.mark.parametrize("path", [COMPLETIONS, "/v1/embeddings"])
def test_token_ids_may_be_many(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parse, "LARGE_BODY_BYTES", 1000)
    monkeypatch.setattr(size_limits, "MAX_OBJECTS", 300)
    assert read(path, {"model": "m", "prompt": [7] * 1000, "input": [7] * 1000}).model == "m"
    with pytest.raises(BadRequest):
        read(CHAT, {"model": "m", "messages": USER, "x": [7] * 1000})


def test_a_body_of_a_thousand_fields_is_none_that_can_be_rewritten() -> None:
    many = {f"f{i}": 1 for i in range(MAX_MEMBERS)}
    for extra in ({"vllm_xargs": {}}, {"stream": True, "stream_options": {}}):
        with pytest.raises(BadRequest):
            read(CHAT, {"model": "m", "messages": USER, **many, **extra})


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
@pytest.mark.parametrize("levels", [800, 900, 950, 980, 990, 1000])
def test_a_deep_body_is_read_or_refused(opening: str, closing: str, levels: int) -> None:
    """Not every step gets as deep as the parser: none may fail in another way."""
    nested = opening * levels + "1" + closing * levels
    parts = {
        MESSAGES: [
            f'{{"role":"assistant","content":[{{"type":"tool_use","id":"a","name":"f","input":{nested}}}]}}',
            f'{{"role":"assistant","content":[{{"type":"tool_result","content":{nested}}}]}}',
        ],
        CHAT: [f'{{"role":"user","content":{nested}}}'],
    }
    for path, messages in parts.items():
        for message in messages:
            body = f'{{"model":"m","metadata":{nested},"messages":[{message}]}}'
            with suppress(BadRequest):
                read_prompt(path, None, body.encode(), ReadOptions())


def test_a_prompt_that_cannot_fit_is_not_converted() -> None:
    prompt = read(CHAT, {"model": "m", "messages": [{"role": "user", "content": "x" * 500}]}, want_source=False)
    assert isinstance(prompt.source, Unread)
    assert isinstance(prompt.source.read(600).source, Chat)
    assert prompt.source.read(400).source == UnknownIds("too_long")


def test_a_salt_that_takes_long_to_hash_is_refused() -> None:
    body = {"model": "m", "messages": USER}
    assert read(CHAT, body | {"cache_salt": "s" * 65_534}).salt == "s" * 65_534
    with pytest.raises(BadRequest, match="`cache_salt` takes more than 65,536 bytes"):
        read(CHAT, body | {"cache_salt": "s" * 65_535})


def test_other_endpoints_take_anything_that_says_it_is_not_json() -> None:
    audio = b"\x00\xff"
    prompt = read_prompt("/v1/audio", "audio/wav", audio, ReadOptions())
    assert (prompt.endpoint, prompt.model, prompt.body) == (Endpoint.OTHER, None, audio)
    assert read_prompt("/x", None, b"", ReadOptions()).model is None
    with pytest.raises(BadRequest):
        read_prompt("/v1/embeddings", "application/json", audio, ReadOptions())


def test_other_endpoints_give_their_model_and_lose_stripped_fields() -> None:
    prompt = read("/v1/embeddings", {"model": "e", "input": [1], "vllm_xargs": {}, "user": "u"})
    assert (prompt.endpoint, prompt.model, prompt.session) == (Endpoint.OTHER, "e", "u")
    assert json.loads(prompt.body) == {"model": "e", "input": [1], "user": "u"}
    assert read("/v1/score", {"model": 7}).model is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
roles = st.sampled_from(["user", "assistant", "system", "tool", "developer"]) | json_values
kinds = st.sampled_from(["text", "tool_use", "tool_result", "thinking", "image", "function_call", "reasoning"])
part = st.fixed_dictionaries({"type": kinds | json_values}, optional={"text": json_values, "content": json_values})
message = st.fixed_dictionaries(
    {"role": roles},
    optional={"content": json_values | st.lists(part, max_size=3), "tool_calls": json_values, "type": kinds},
)
names = ["messages", "prompt", "input", "tools", "system", "stream", "reasoning", "documents", "thinking", "suffix"]


@given(
    st.sampled_from([CHAT, COMPLETIONS, RESPONSES, MESSAGES, "/v1/score"]),
    st.dictionaries(st.sampled_from(names), json_values | st.lists(message | part, max_size=3), max_size=5),
)
def test_nothing_breaks_the_reading(path: str, fields: dict[str, Any]) -> None:
    """Any JSON becomes a prompt or a refusal."""
    try:
        prompt = read(path, {"model": "m", **fields})
    except BadRequest:
        return
    assert isinstance(prompt.source, Chat | Text | Ids | UnknownIds)


@given(st.sampled_from([CHAT, COMPLETIONS, RESPONSES, MESSAGES, "/v1/score"]), st.binary(max_size=40))
def test_no_bytes_break_the_reading(path: str, body: bytes) -> None:
    with pytest.raises(BadRequest):
        read_prompt(path, None, body + b"\x00", ReadOptions())
