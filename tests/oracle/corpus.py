"""Requests of the oracle suite: those of real clients, every method on every path, and bodies that are nearly right.

A case names the rows of the tables of differences (docs/reference/http.md) by which the router's answer to it may be
another one than the engine's; most cases name none.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from router.prompt.api.anthropic import MessagesFields
from router.prompt.api.continuable import CHECKED_FIELDS, PLAIN_FIELDS
from router.prompt.api.openai import ChatFields, CompletionFields
from router.prompt.api.responses import ResponsesFields
from tests.oracle.http1 import Headers, Request
from tests.paths import DATA

MODEL = "warm-tiny"
HOST = (b"host", b"oracle")
JSON = (b"content-type", b"application/json")
GZIPPED = (HOST, JSON, (b"content-encoding", b"gzip"))
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
TEXT = "a story of routers and of the engines behind them " * 8
SMALL: Mapping[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 4},
    COMPLETIONS: {"prompt": TEXT, "max_tokens": 4},
    RESPONSES: {"input": TEXT, "max_output_tokens": 4},
    MESSAGES: {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 4},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": TEXT}]},
    "/v1/embeddings": {"input": TEXT},
    "/v1/rerank": {"query": "routers", "documents": ["engines", "routers"]},
    "/rerank": {"query": "routers", "documents": ["engines", "routers"]},
    "/v2/rerank": {"query": "routers", "documents": ["engines", "routers"]},
    "/v1/score": {"text_1": "routers", "text_2": "engines"},
    "/tokenize": {"prompt": TEXT},
    "/detokenize": {"tokens": [5, 6, 7]},
}
BY_CACHE = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)
FIELDS = {
    CHAT: (ChatFields, (*CHECKED_FIELDS, *PLAIN_FIELDS)),
    COMPLETIONS: (CompletionFields, (*CHECKED_FIELDS, *PLAIN_FIELDS)),
    RESPONSES: (ResponsesFields, ()),
    MESSAGES: (MessagesFields, ()),
}
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
VALUES = (
    *(
        "null",
        "true",
        "false",
        "0",
        "1",
        "-1",
        "7",
        "7.0",
        "1.5",
        "1e400",
        "-0",
        "1" * 40,
        '""',
        '"x"',
        '"7"',
        '"yes"',
        '"\\u0000"',
        r'"\ud83d"',
    ),
    *("[]", "{}", "[null]", "[[]]", '["x"]', "[7]", '[{"role":"user"}]', '{"x":null}', '{"include_usage":"yes"}'),
)  # of a field, as JSON
MALFORMED = {
    "an object that does not end": b"{",
    "nothing": b"",
    "blanks": b" \r\n",
    "a list": b"[]",
    "null": b"null",
    "a number": b"7",
    "a text": b'"x"',
    "two objects": b"{}{}",
    "a word": b"chat",
    "a form": b"model=warm-tiny&prompt=x",
    "an empty key": b'{"":1}',
    "no value": b'{"model":}',
    "no comma": b'{"model":"warm-tiny" "max_tokens":1}',
    "single quotes": b"{'model':'warm-tiny'}",
    "a comment": b'{"model":"warm-tiny"/* x */}',
}  # whole bodies
EDITS: Mapping[str, tuple[bytes, bytes]] = {
    "a trailing comma": (b'{"model"', b'{"x":[1,],"model"'),
    "a bare line break in a text": (b"a story", b"a\nstory"),
    "an unknown escape": (b"a story", b"a\\qstory"),
    "a byte that is no UTF-8": (b"a story", b"a\xffstory"),
    "a cut character": (b"a story", b"a\xf0\x9f\x98story"),
    "a surrogate in UTF-8": (b"a story", b"a\xed\xa0\xbdstory"),
    "a leading zero": (b'{"model"', b'{"x":01,"model"'),
    "a plus sign": (b'{"model"', b'{"x":+1,"model"'),
    "half an exponent": (b'{"model"', b'{"x":1e,"model"'),
}  # of a body that is right
HALF_EMOJI = r"\ud83d"
OWN_FIELDS = ("kv_transfer_params", "vllm_xargs", "cache_salt")  # that the router removes or replaces


class Case(NamedTuple):
    """A request, and the rows of the tables of differences that may apply to it."""

    name: str
    request: Request
    rows: tuple[str, ...] = ()


def post(name: str, path: str, body: bytes, *rows: str, headers: Headers = (HOST, JSON)) -> Case:
    return Case(f"POST {path}: {name}", Request("POST", path, headers, body), rows)


def encode(path: str, **fields: Any) -> bytes:
    """Return a small right body for `path`, with these fields more."""
    return json.dumps({"model": MODEL, **SMALL[path], **fields}).encode()


def clients() -> Iterator[Case]:
    """Yield what 19 real clients sent."""
    for file in sorted((DATA / "clients").glob("*.json")):
        recorded = json.loads(file.read_text())
        for number, sent in enumerate(recorded["requests"]):
            headers = tuple((name.encode(), value.encode()) for name, value in sent["headers"])
            headers = tuple(header for header in headers if header[0].lower() not in (b"host", b"content-length"))
            body = b"" if sent.get("body") is None else json.dumps(sent["body"]).encode()
            request = Request(sent["method"], sent["path"], (HOST, *headers), body)
            yield Case(f"{file.stem} {number}", request, _rows_of(request))


def methods() -> Iterator[Case]:
    """Yield every method on every path of the API, and on paths that the API does not have."""
    paths = [*SMALL, "/v1/models", f"/v1/models/{MODEL}", "/v1/models/unknown", "/v1/responses/resp_unknown"]
    paths += ["/v1/responses/resp_unknown/cancel", "/v1/responses/resp_unknown/input_items", "/", "/v1", "/nowhere"]
    paths += ["/v1/chat/completions/", "//v1/models", "/v1/load_lora_adapter", "/version"]
    for path in paths:
        for method in METHODS:
            body = encode(path) if method == "POST" and path in SMALL else b""
            request = Request(method, path, (HOST, JSON) if body else (HOST,), body)
            yield Case(f"{method} {path}", request, _rows_of(request))


def streams() -> Iterator[Case]:
    """Yield right requests of each endpoint, whole and streamed, with the fields that change what an answer holds."""
    for path in SMALL:
        yield post("as it is", path, encode(path))
    for path in BY_CACHE:
        yield post("streamed", path, encode(path, stream=True), *_of_stream(path))
    for path in (CHAT, COMPLETIONS):
        for name, fields in {
            "usage": {"stream_options": {"include_usage": True}},
            "no usage": {"stream_options": {"include_usage": False}},
            "usage in each chunk": {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
            "token ids": {"return_token_ids": True},
            "no token ids": {"return_token_ids": False},
            "several answers": {"n": 2},
            "a stop string": {"stop": [" the"], "temperature": 0},
            "a seed": {"seed": 7},
            "log probabilities": {"logprobs": 2 if path == COMPLETIONS else True},
            "a session": {"user": "a session", "session_id": "another"},
            "a salt": {"cache_salt": "a salt"},
            "stripped fields": {"kv_transfer_params": None, "vllm_xargs": {"x": 1}},
        }.items():
            rows = _of_stream(path) if not fields.get("stream_options", {}).get("include_usage") else ()
            yield post(f"streamed, {name}", path, encode(path, stream=True, **fields), *rows)
            if "stream_options" not in fields:
                yield post(f"whole, {name}", path, encode(path, **fields))


def malformed() -> Iterator[Case]:
    """Yield bodies that are no JSON, or JSON of another kind than an object, for each endpoint."""
    for path in SMALL:
        for name, body in MALFORMED.items():
            yield post(
                name,
                path,
                body,
            )
        right = encode(path)
        for name, (old, new) in EDITS.items():
            if old in right:
                yield post(
                    name,
                    path,
                    right.replace(old, new, 1),
                )
        for encoding in ("utf-8-sig", "utf-16", "utf-16-le", "utf-32"):
            yield post(encoding, path, right.decode().encode(encoding), "encodings")
        for name, value in {"not a number": "NaN", "infinity": "Infinity", "half an emoji": f'"{HALF_EMOJI}"'}.items():
            yield post(f"{name} in an unknown field", path, _with(right, "x", value), "python-json")
        for depth in (100, 900, 100_000):
            yield post(f"{depth} deep", path, _with(right, "x", "[" * depth + "]" * depth), "depth")
        yield post("half an emoji in the text", path, right.replace(b"a story", HALF_EMOJI.encode()), "python-json")
        yield post("a field twice", path, _with(right, "model", f'"{MODEL}"'))
        many = ",".join(["{}", *(f'"x{n}":1' for n in range(2000))])
        yield post("2,000 fields", path, _with(right, "vllm_xargs", many), "fields")
        packed = gzip.compress(right, mtime=0)
        yield post("gzip", path, packed, "content-encoding", headers=GZIPPED)
        for kind in (b"text/plain", b"application/json; charset=utf-8", b"application/JSON", b"nonsense"):
            yield post(f"content type {kind.decode()}", path, right, headers=(HOST, (b"content-type", kind)))
        yield post("no content type", path, right, headers=(HOST,))


def wrong_types() -> Iterator[Case]:
    """Yield a value of every type for every field that the router reads, at each of the four prompt endpoints."""
    for path, (kind, names) in FIELDS.items():
        own = [field.encode_name for field in msgspec.structs.fields(kind)]
        right = {name: json.dumps(value) for name, value in {"model": MODEL, **SMALL[path]}.items()}
        for name in dict.fromkeys([*own, *names]):
            for stream in ("false", "true"):
                for value in VALUES:
                    fields = {**right, "stream": stream, name: value}
                    body = ",".join(f'"{key}":{raw}' for key, raw in fields.items())
                    rows = _of_stream(path) if fields["stream"] != "false" else ()
                    if HALF_EMOJI in value:
                        rows += ("python-json",)
                    if name in OWN_FIELDS:
                        rows += ("own-fields",)
                    yield post(f"{name}={value} stream={stream}", path, f"{{{body}}}".encode(), *rows)


def some_wrong_types() -> Iterator[Case]:
    """Yield one of 17 of these: each field and each value, but not each pair."""
    return islice(wrong_types(), 0, None, 17)


def _with(body: bytes, name: str, value: str) -> bytes:
    """Return `body` with one field more."""
    return b'%b,"%b":%b}' % (body[:-1], name.encode(), value.encode())


def _of_stream(path: str) -> tuple[str, ...]:
    return ("stream-fingerprint",) if path in (CHAT, COMPLETIONS) else ()


def _rows_of(request: Request) -> tuple[str, ...]:
    """Return the rows that are about this method on this path."""
    path = urlsplit(request.path).path
    if any(name.lower() == b"upgrade" for name, _ in request.headers):
        return ("websocket",)
    if request.method in ("HEAD", "OPTIONS"):
        return (request.method.lower(),)
    if path.startswith("/v1/models"):
        return ("models",)
    if path.startswith("/v1/responses/"):
        return ("stored-responses",)
    if request.method == "POST" and path in SMALL:
        return _of_stream(path) if b'"stream": true' in request.body else ()
    return ("paths",)
