"""Requests that are nearly right, for `test_fuzz.py`: known fields with wrong values, known shapes with a hole.

Pure noise is refused at the first byte and finds nothing. What finds trouble has the right field in the wrong type, a
tool call without a name, a number where a list should be.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

MODEL = "warm-tiny"

texts = st.one_of(st.sampled_from(["", "hi", "\0", "é\U0001f600", "<|im_start|>", "{{ x }}"]), st.text(max_size=20))
models = st.sampled_from([MODEL, "poet", "other"])
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    texts,
    models,
)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=8
)


def mostly(right: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Right seven times in eight: an object of many fields should seldom have more than one that is wrong."""
    return st.integers(0, 7).flatmap(lambda n: right if n else anything)


def objects(
    others: str, needed: dict[str, st.SearchStrategy[Any]], **optional: st.SearchStrategy[Any]
) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with the `needed` members, some of the `optional` ones, and seldom one of the `others` with anything."""
    right = st.fixed_dictionaries(
        {name: mostly(value) for name, value in needed.items()},
        optional={name: mostly(value) for name, value in optional.items()},
    )
    wrong = st.dictionaries(words(others), anything, max_size=1)
    return st.builds(dict.__or__, right, st.integers(0, 3).flatmap(lambda n: st.just({}) if n else wrong))


def words(text: str) -> st.SearchStrategy[str]:
    return st.sampled_from(text.split())


parts = objects(
    "id name input content tool_use_id source image_url",
    {"type": words("text text input_text image_url tool_use tool_result thinking"), "text": texts},
    id=texts,
    name=texts,
    content=texts,
    tool_use_id=texts,
)
calls = objects(
    "index", {"id": texts, "type": st.just("function"), "function": objects("x", {"name": texts, "arguments": texts})}
)
messages = st.lists(
    objects(
        "name reasoning output arguments type",
        {
            "role": words("user assistant system tool developer"),
            "content": st.one_of(texts, st.lists(parts, max_size=3)),
        },
        tool_calls=st.lists(calls, max_size=2),
        tool_call_id=texts,
        type=words("message function_call function_call_output reasoning"),
        call_id=texts,
    ),
    min_size=1,
    max_size=3,
)
prompts = st.one_of(texts, st.lists(st.integers(0, 500), min_size=1, max_size=40), st.lists(texts, max_size=3))
schemas = st.fixed_dictionaries({"type": st.just("object")}, optional={"properties": anything})
functions = objects("description strict", {"name": texts, "parameters": schemas})
tools = st.lists(
    objects("name", {"type": st.just("function"), "function": functions}, input_schema=schemas, name=texts), max_size=2
)
rare = (
    "instructions tool_choice cache_salt user metadata session_id previous_response_id chat_template documents "
    "add_generation_prompt continue_final_message reasoning_effort response_format kv_transfer_params vllm_xargs "
    "echo suffix logprobs prompt_logprobs truncate_prompt_tokens tokens query text_1 text_2 background"
)
bodies = objects(
    rare,
    {"model": models, "messages": messages, "prompt": prompts, "input": st.one_of(messages, prompts)},
    system=st.one_of(texts, st.lists(parts, max_size=2)),
    stream=st.booleans(),
    stream_options=objects("x", {}, include_usage=st.booleans(), continuous_usage_stats=st.booleans()),
    max_tokens=st.integers(1, 5),
    n=st.integers(1, 3),
    tools=tools,
    chat_template_kwargs=objects("messages tools x", {}, enable_thinking=st.booleans()),
    cache_salt=texts,
    add_generation_prompt=st.booleans(),
    continue_final_message=st.booleans(),
)


def written(body: Any) -> bytes:
    return json.dumps(body).encode()


breaks = st.one_of(
    st.binary(max_size=4),
    st.sampled_from([b'"', b"\\u", b"\\ud800", b"NaN", b"}", b"{", b",", b"\xef\xbb\xbf", b"[" * 2000]),
)
content_types = st.sampled_from(
    [b"application/json", b"text/plain", b"", b"application/json; charset=utf-16", b"multipart/form-data"]
)

methods = words("GET POST PUT DELETE HEAD OPTIONS PATCH PURGE get CONNECT")
segments = words(
    "v1 chat completions responses resp_1 cancel models .. . %2e%2e %2F %00 %ff % admin health metrics é ~ * ;"
)
paths = st.lists(st.one_of(segments, st.just(""), st.just("a" * 200)), max_size=5).map(lambda s: "/" + "/".join(s))
queries = st.sampled_from(["", "?", "?a=b", "?%", "#x", "?a=é"])

header_names = st.one_of(
    words(
        "content-type content-length transfer-encoding connection expect upgrade host te trailer authorization cookie "
        "x-request-id x-session-id x-data-parallel-rank x-warmroute-record content-encoding sec-websocket-key"
    ).map(str.encode),
    st.from_regex(rb"\A[a-zA-Z0-9!#$%&'*+.^_`|~-]{1,20}\Z"),
)
header_values = st.one_of(
    words("0 5 -1 chunked close keep-alive,x 100-continue h2c websocket gzip").map(str.encode),
    st.sampled_from([b"", b"\xff\xfe", b"a" * 500]),
    st.binary(max_size=20).map(lambda value: value.replace(b"\r", b"").replace(b"\n", b"")),
)
noises = st.one_of(
    st.binary(max_size=200),
    st.binary(max_size=50).map(lambda tail: b"POST /v1/chat/completions HTTP/1.1\r\n" + tail),
)
