"""Answers of engines, right and odd, as bytes on the wire."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from http import HTTPStatus
from typing import NamedTuple

STATUSES = (200, 201, 202, 204, 206, 300, 302, 304, 307, 308, 400, 401, 402, 403, 404, 405, 408, 409, 410, 413, 415)
STATUSES += (418, 422, 424, 425, 429, 431, 451, 499, 500, 501, 502, 503, 504, 505, 507, 529, 599)
JSON, EVENTS = b"content-type: application/json\r\n", b"content-type: text/event-stream; charset=utf-8\r\n"
HEAD = b'{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"warm-tiny",'
COMPLETION = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "warm-tiny",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6},
    }
).encode()
ROLE = b'data: %b"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n' % HEAD
DONE = b"data: [DONE]\n\n"


class Answer(NamedTuple):
    """The bytes of an answer; the connection is closed after them. `rows`: see `corpus.Case`."""

    name: str
    raw: bytes
    rows: tuple[str, ...] = ()


def text(word: str, more: bytes = b"") -> bytes:
    """Return a chunk with this word, and fields of its choice."""
    choice = b'{"index":0,"delta":{"content":"%b"},"logprobs":null,"finish_reason":null%b}' % (word.encode(), more)
    return b'data: %b"choices":[%b]}\n\n' % (HEAD, choice)


END = b'data: %b"choices":[{"index":0,"delta":{"content":""},"finish_reason":"stop"}]}\n\n' % HEAD
WHOLE = ROLE + text("one ") + text("two") + END + DONE


def sized(body: bytes, headers: bytes = JSON, status: int = 200) -> bytes:
    return b"%b%bcontent-length: %d\r\n\r\n%b" % (_line(status), headers, len(body), body)


def chunked(body: bytes, headers: bytes = EVENTS, status: int = 200, size: int = 64) -> bytes:
    """Return an answer in chunks of `size` bytes."""
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return b"%b%btransfer-encoding: chunked\r\n\r\n%b0\r\n\r\n" % (_line(status), headers, chunks)


def unsized(body: bytes, headers: bytes = EVENTS) -> bytes:
    """Return an answer that the end of its connection ends."""
    return b"%b%bconnection: close\r\n\r\n%b" % (_line(200), headers, body)


def _line(status: int) -> bytes:
    phrase = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "Odd"
    return b"HTTP/1.1 %d %b\r\n" % (status, phrase.encode())


def statuses() -> Iterator[Answer]:
    """Yield every status with a JSON error, with a page of HTML, and with nothing."""
    for status in STATUSES:
        error = {"error": {"message": "it is so", "type": "OddError", "param": None, "code": status}}
        bodiless = status in (204, 304)
        body = b"" if bodiless else json.dumps(error).encode()
        yield Answer(f"{status}", b"%b\r\n" % _line(status) if bodiless else sized(body, JSON, status))
        if not bodiless:
            yield Answer(f"{status}, retry later", sized(body, JSON + b"retry-after: 7\r\n", status))
            yield Answer(f"{status}, HTML", sized(b"<p>no</p>", b"content-type: text/html\r\n", status))
            yield Answer(f"{status}, empty", sized(b"", b"", status))


def framings() -> Iterator[Answer]:
    """Yield one answer in every framing, and with odd headers."""
    for early in (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"):
        yield Answer(f"after {early[9:12].decode()}", early + sized(COMPLETION))
    for size in (1, 7, 10_000):
        yield Answer(f"JSON in chunks of {size}", chunked(COMPLETION, JSON, size=size))
    yield Answer("JSON up to the end", unsized(COMPLETION, JSON))
    whole = chunked(COMPLETION, JSON)
    yield Answer("chunk extensions", whole.replace(b"40\r\n", b"40;a=b\r\n", 1))
    yield Answer("trailers", whole[:-2] + b"x-trailer: 1\r\n\r\n")
    yield Answer("HTTP/1.0", unsized(COMPLETION, JSON).replace(b"1.1", b"1.0", 1))
    for name, lines in {
        "two cookies": b"set-cookie: a=1\r\nset-cookie: b=2\r\n",
        "an empty header": b"x-empty:\r\n",
        "capitals": b"X-Odd-Name: Value\r\n",
        "a hop's header": b"x-hop: 1\r\nconnection: x-hop\r\n",
        "bytes above ASCII": b"x-latin: \xe9\r\n",
        "our own names": b"x-warmroute-target: evil\r\n",
        "a request id": b"x-request-id: theirs\r\n",
        "CORS": b"access-control-allow-origin: *\r\n",
    }.items():
        yield Answer(name, sized(COMPLETION, JSON + lines))
    for kind in (b"text/plain", b"application/x-ndjson", b"audio/mpeg", b"Application/JSON; charset=utf-8", b""):
        lines = b"content-type: %b\r\n" % kind if kind else b""
        yield Answer(f"content type {kind.decode() or 'missing'}", sized(COMPLETION, lines))
    yield Answer("gzip", sized(gzip.compress(COMPLETION, mtime=0), JSON + b"content-encoding: gzip\r\n"))
    yield Answer("gzip, a stream", unsized(gzip.compress(WHOLE, mtime=0), EVENTS + b"content-encoding: gzip\r\n"))


def bodies() -> Iterator[Answer]:
    """Yield bodies that are not what their content type says, or very large."""
    for name, body in {
        "no JSON": b"{",
        "nothing": b"",
        "a list": b"[1]",
        "null": b"null",
        "half an emoji": rb'{"x":"\ud83d"}',
        "bytes": bytes(range(256)),
        "2 MB": json.dumps({"x": "y" * 2_000_000}).encode(),
        "usage of another kind": b'{"usage":[1]}',
        "usage beyond all bounds": b'{"usage":{"prompt_tokens":1e400,"completion_tokens":-1}}',
        "deep": b"[" * 5000 + b"]" * 5000,
    }.items():
        yield Answer(f"JSON: {name}", sized(body))
        yield Answer(f"JSON in chunks: {name}", chunked(body, JSON, size=100_000))


def streams() -> Iterator[Answer]:
    """Yield streams of every shape that ends well."""
    events = {
        "usual": WHOLE,
        "with reasoning": ROLE + text("x").replace(b'"content"', b'"reasoning_content"') + text("one") + END + DONE,
        "with CRLF": WHOLE.replace(b"\n", b"\r\n"),
        "with CR": WHOLE.replace(b"\n", b"\r"),
        "comments": b": ping\n\n" + ROLE + b": ping\n\n" + text("one") + b":\n\n" + END + DONE,
        "names and ids of events": WHOLE.replace(b"data:", b"event: chunk\nid: 1\nretry: 5\ndata:"),
        "two lines of data": ROLE + b'data: {"id":"1",\ndata: "choices":[]}\n\n' + END + DONE,
        "no blank after the colon": WHOLE.replace(b"data: ", b"data:"),
        "more blank lines": WHOLE.replace(b"\n\n", b"\n\n\n\n"),
        "a byte order mark": b"\xef\xbb\xbf" + WHOLE,
        "no [DONE]": ROLE + text("one") + END,
        "[DONE] twice": WHOLE + DONE,
        "more after [DONE]": WHOLE + text("three"),
        "no blank line at the end": WHOLE[:-2],
        "half an event at the end": WHOLE + b'data: {"x"',
        "nothing": b"",
        "blank lines alone": b"\n\n\n",
        "no JSON": b"data: hello\n\ndata: {\n\n" + DONE,
        "a large event": ROLE + text("x" * 100_000) + END + DONE,
        "bytes that are no UTF-8": ROLE + text("one").replace(b"one", b"\xff\xfe") + END + DONE,
        "a text that looks like events": ROLE + text(r"data: [DONE]\n\ndata: {\"error\":{}}") + END + DONE,
        "several choices": ROLE + text("one") + text("two").replace(b'"index":0', b'"index":1') + END + DONE,
        "a tool call": ROLE
        + text("").replace(b'{"content":""}', b'{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]}')
        + END.replace(b'"stop"', b'"tool_calls"')
        + DONE,
        "usage": WHOLE.replace(DONE, b'data: %b"choices":[],"usage":{"prompt_tokens":5}}\n\n' % HEAD + DONE),
    }
    for name, body in events.items():
        rows = ("usage-not-asked",) if name == "usage" else ()
        yield Answer(f"stream: {name}", chunked(body), rows)
        yield Answer(f"stream up to the end: {name}", unsized(body), rows)
        yield Answer(f"stream byte by byte: {name}", chunked(body, size=1 if len(body) < 10_000 else 997), rows)


def errors() -> Iterator[Answer]:
    """Yield errors inside a stream that has begun: of the client (4xx) and of the engine."""
    for code in ("400", "404", "422", "429", "500", "502", "503", '"400"', '"BadRequest"', "null"):
        error = b'data: {"error": {"message": "it is so", "type": "OddError", "param": null, "code": %b}}\n\n'
        event = error % code.encode()
        for place, begun in {"first": b"", "after a role": ROLE, "in the middle": ROLE + text("one ")}.items():
            yield Answer(f"error {code} {place}", chunked(begun + event + DONE))
            yield Answer(f"error {code} {place}, compact", chunked(begun + event.replace(b": ", b":") + DONE))
        yield Answer(f"error {code}, no [DONE]", chunked(ROLE + event), ("done-after-error",))
    yield Answer("error as a text", chunked(ROLE + b'data: {"error": "it is so"}\n\n' + DONE))


def broken() -> Iterator[Answer]:
    """Yield answers that end too early."""
    yield Answer("no answer", b"")
    yield Answer("half a head", b"HTTP/1.1 200 OK\r\ncontent-ty")
    yield Answer("no HTTP", b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
    yield Answer("a head alone", sized(COMPLETION)[: -len(COMPLETION)])
    for name, whole in {"JSON": sized(COMPLETION), "JSON in chunks": chunked(COMPLETION, JSON)}.items():
        yield Answer(f"half of {name}", whole[:-40])
    stream = chunked(WHOLE, size=len(ROLE))
    for name, end in {
        "between chunks": stream.index(ROLE) + len(ROLE) + 2,
        "inside a chunk": len(stream) - 150,
        "inside an event": stream.index(b"two"),
        "before the last chunk": len(stream) - 5,
    }.items():
        yield Answer(f"a stream cut {name}", stream[:end])
