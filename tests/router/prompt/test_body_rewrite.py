"""Nothing that only the router may set gets past, and nothing else changes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import BadRequest
from router.prompt.api.parse import ReadOptions, read_prompt
from router.prompt.body_rewrite import AnswerAdditions, AnswerRequest, as_flag, ask_engine, open_body

NAMES = frozenset(("kv_transfer_params", "vllm_xargs"))
SKIMMING = ReadOptions(NAMES, want_source=False)

plain = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False)
text = st.text(st.characters(codec="utf-8"), max_size=12)
values = st.recursive(
    plain | text, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3), max_leaves=5
)
keys = text | st.sampled_from(
    ["kv_transfer_params", "vllm_xargs", "KV_transfer_params", "kv_transfer_params ", "stream_options", "model"]
)


@st.composite
def spelled(draw: st.DrawFn, name: str) -> str:
    """One of the ways to write a JSON string: any character may stand as it is or as an escape."""
    written = ""
    for character in name:
        if ord(character) < 0x10000 and draw(st.booleans()):
            escape = f"\\u{ord(character):04x}"
            written += escape.upper().replace("\\U", "\\u") if draw(st.booleans()) else escape
        else:
            written += json.dumps(character, ensure_ascii=False)[1:-1]
    return f'"{written}"'


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """A JSON object as a hostile client may write it: escaped keys, repeated keys, odd spaces."""
    members = draw(st.lists(st.tuples(keys, values), max_size=6))
    space = st.sampled_from(["", " ", "\n\t "])
    written = [
        f"{draw(space)}{draw(spelled(key))}{draw(space)}:{json.dumps(value, ensure_ascii=draw(st.booleans()))}"
        for key, value in members
    ]
    return (draw(space) + "{" + ",".join(written) + draw(space) + "}" + draw(space)).encode()


@given(bodies())
def test_stripped_keys_are_gone_for_the_engines_parser_and_nothing_else_is(body: bytes) -> None:
    expected = {key: value for key, value in json.loads(body).items() if key not in NAMES}
    stripped = open_body(body, NAMES).raw
    assert json.loads(stripped) == expected
    assert list(json.loads(stripped)) == list(expected)


def ask(body: bytes, *, usage: bool = True, token_ids: bool = False) -> AnswerRequest:
    members = open_body(body, ()).members
    return ask_engine(
        body, members.get("stream_options"), members.get("return_token_ids"), AnswerAdditions(usage, token_ids)
    )


@pytest.mark.parametrize("usage", [None, {"include_usage": True}, {"include_usage": False}])
@pytest.mark.parametrize("ids", [None, True, False])
def test_usage_and_token_ids_are_asked_for_together(usage: dict[str, Any] | None, ids: bool | None) -> None:
    options = {"stream_options": usage, "return_token_ids": ids}
    before = {"model": "m"} | {name: option for name, option in options.items() if option is not None}
    asking = ask(json.dumps(before).encode(), token_ids=True)
    assert (asking.hide_usage, asking.hide_ids) == (usage != {"include_usage": True}, ids is not True)
    wanted = {"stream_options": {"include_usage": True}, "return_token_ids": True}
    assert json.loads(asking.raw) == before | wanted
    assert ask(asking.raw, token_ids=True) == AnswerRequest(asking.raw)
    assert ask(json.dumps(before).encode(), usage=False) == AnswerRequest(json.dumps(before).encode())


@given(bodies(), st.none() | st.dictionaries(st.sampled_from(["include_usage", "continuous_usage_stats", "x"]), plain))
def test_usage_is_asked_for_and_the_rest_kept(body: bytes, options: dict[str, Any] | None) -> None:
    before = json.loads(body) | {"model": "m", "stream_options": options}
    asking = ask(json.dumps(before).encode())
    after = json.loads(asking.raw)
    flag = (options or {}).get("include_usage")
    as_it_is = flag is not None and as_flag(flag) is not False  # on, or what the engine refuses
    assert asking.hide_usage is not as_it_is
    if as_it_is:
        assert after == before
        return
    expected = dict(options or {}) | {"include_usage": True}
    if "continuous_usage_stats" in expected:
        expected["continuous_usage_stats"] = False
    assert after == before | {"stream_options": expected}


@given(bodies().filter(lambda body: json.loads(body) and "stream_options" not in json.loads(body)))
def test_usage_is_added_to_a_body_without_options(body: bytes) -> None:
    asking = ask(body)
    assert asking.hide_usage
    assert json.loads(asking.raw) == json.loads(body) | {"stream_options": {"include_usage": True}}


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","kv\\u005ftransfer_params":{"a":1},"x":1}',
        b'{"kv_transfer_params":1,"model":"m","x":1,"kv_transfer_params":{"a":1}}',
        b'{"model":"m" , "\\u006bv_transfer_params" : null, "vllm_xargs":{"s":"}"},"x":1}',
    ],
)
def test_disguised_keys(body: bytes) -> None:
    assert json.loads(open_body(body, NAMES).raw) == {"model": "m", "x": 1}


def test_a_body_without_them_is_the_same_object() -> None:
    body = '{"model":"m","messages":[{"content":"größer"}]}'.encode()
    assert open_body(body, NAMES).raw is body
    mentioned = b'{"messages":"about kv_transfer_params and \\u00e9"}'
    assert open_body(mentioned, NAMES).raw is mentioned


def test_other_values_keep_their_bytes() -> None:
    body = b'{"a" : 1.0e5 ,"vllm_xargs":1,"b":[1,  2],"c":123456789012345678901234567890}'
    assert open_body(body, NAMES).raw == b'{"a":1.0e5,"b":[1,  2],"c":123456789012345678901234567890}'


def test_any_name_in_any_spelling() -> None:
    assert open_body(b'{"a\\/b":1,"c":2}', {"a/b"}).raw == b'{"c":2}'


@pytest.mark.parametrize(
    "body",
    [
        '{"vllm_xargs":1}'.encode("utf-16"),
        b'\xef\xbb\xbf{"vllm_xargs":1}',
        b'[{"vllm_xargs":1}]',
        b'{"vllm_xargs":1} {}',
        b'{"vllm_xargs":NaN',
        b'{"vllm_xargs":' + b"[" * 100_000,
    ],
)
def test_what_is_no_json_object_in_utf8_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        open_body(body, {"vllm_xargs"})


def test_stream_options_of_the_wrong_type_are_refused() -> None:
    with pytest.raises(BadRequest) as refusal:
        ask(b'{"stream_options":[1]}')
    assert refusal.value.param == "stream_options"


@given(bodies().filter(lambda body: "model" not in json.loads(body)))  # twice there, both must be text
def test_the_one_reading_strips_the_same(body: bytes) -> None:
    """`read_prompt` opens a body only when its parse saw something to strip: it must see it in every spelling."""
    end = body.rindex(b"}")
    additions = body[:end] + (b"," if json.loads(body) else b"") + b'"model":"m","messages":[],"stream":false}'
    expected = {key: value for key, value in json.loads(additions).items() if key not in NAMES}
    prompt = read_prompt("/v1/chat/completions", None, additions, SKIMMING)
    assert json.loads(prompt.body) == expected
    assert (prompt.body is additions) == (expected == json.loads(additions))


def test_a_field_that_is_read_can_be_stripped_too() -> None:
    options = ReadOptions(frozenset(("cache_salt", "x")), want_source=False)
    prompt = read_prompt("/v1/chat/completions", None, b'{"model":"m","messages":[],"cache_salt":"s","x":1}', options)
    assert (prompt.salt, json.loads(prompt.body)) == (None, {"model": "m", "messages": []})
