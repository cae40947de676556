"""What an answer says of its cost, read from its ends, and the one chunk of it that a client must not see.

Chunks pass by undecoded. `UsageTail` keeps the last bytes of the answer (and the first, where something stands there)
and looks into them once, at the end: in JSON a quote inside a string is escaped, so `"usage":` in the bytes is always
a key, and the last one with an object is the answer's. This holds for whole bodies and for event streams alike.

`HideUsage` drops the chunk that was asked for in the client's place (edge.py). For the client a stream then differs
from the engine's own answer in one thing: vLLM 0.32 puts `system_fingerprint`, and per-request metrics if it is
started with them, into that last chunk instead of the one with `finish_reason`. Other chunks do not get a
`"usage": null`, as OpenAI's do. An engine that always sends usage (`--enable-force-include-usage`) sends one to
clients that did not ask; through the router they do not see it.
"""

from __future__ import annotations

import json
import re
from collections import deque
from typing import Any, NamedTuple

import msgspec

from router.prompt.prompt import Endpoint

TAIL_BYTES = 16 * 1024
HEAD_BYTES = 4 * 1024
LARGEST_EVENT_BYTES = 64 * 1024  # a usage chunk is a few hundred bytes: anything longer is not held for it

_USAGE_KEY = re.compile(rb'"usage"\s*:\s*(?=\{)')
_RESPONSE_ID = re.compile(rb'"id"\s*:\s*"(resp_[^"\\]{1,200})"')
_EVENT_END = re.compile(rb"\r?\n\r?\n")
_FULL_CHOICES = re.compile(rb'"choices"\s*:\s*(?:\[\s*)?[^\[\]\s]')
_READ = json.JSONDecoder()
# With their line break: inside an event's JSON it would be escaped, so no answer can speak them.
_LAST_WORDS = (b"\ndata: [DONE]", b"\nevent: message_stop", b"\nevent: response.completed")


class Usage(NamedTuple):
    """Tokens of one answer as the engine counted them. None: it did not say."""

    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None


class UsageTail:
    """Sees every chunk of one answer, keeps little, and knows the usage at the end."""

    __slots__ = ("_chunks", "_endpoint", "_head", "_size")

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._head = b""
        self._chunks: deque[bytes] = deque()
        self._size = 0

    def feed(self, chunk: bytes) -> None:
        if len(self._head) < HEAD_BYTES:
            self._head += chunk[: HEAD_BYTES - len(self._head)]
        self._chunks.append(chunk)
        self._size += len(chunk)
        while self._size - len(self._chunks[0]) >= TAIL_BYTES:
            self._size -= len(self._chunks.popleft())

    def ended(self) -> bool:
        """Whether a stream has said its last word, whatever the connection does after it."""
        end = b"\n" + b"".join(list(self._chunks)[-2:])
        return any(mark in end for mark in _LAST_WORDS)

    def read_usage(self) -> Usage | None:
        """What the answer said; None if it said nothing, or ended before it could."""
        kept = b"".join(self._chunks)
        last = _whole_usage(kept) if kept.startswith(b"{") else _last_usage(kept)
        if self._endpoint is Endpoint.MESSAGES:
            first = _first_usage(self._head) or {}
            last = first | {k: v for k, v in (last or {}).items() if v is not None}
        if not last:
            return None
        return _anthropic(last) if self._endpoint is Endpoint.MESSAGES else _openai(last)

    def response_id(self) -> str | None:
        """The id under which `/v1/responses` can be asked for this answer later."""
        if self._endpoint is not Endpoint.RESPONSES or not (found := _RESPONSE_ID.search(self._head)):
            return None
        return found[1].decode(errors="replace")


class _Whole(msgspec.Struct):
    """An answer that is one JSON object, as short ones are."""

    usage: Any = None


_WHOLE = msgspec.json.Decoder(_Whole)


def _whole_usage(answer: bytes) -> dict[str, Any] | None:
    """Of a tail that may be the whole answer: one strict parse costs a third of looking for the key."""
    try:
        usage = _WHOLE.decode(answer).usage
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _last_usage(answer)
    return usage if isinstance(usage, dict) else None


def _last_usage(answer: bytes) -> dict[str, Any] | None:
    for key in reversed(list(_USAGE_KEY.finditer(answer))):
        if (usage := _object_at(answer, key.end())) is not None:
            return usage
    return None


def _first_usage(answer: bytes) -> dict[str, Any] | None:
    key = _USAGE_KEY.search(answer)
    return _object_at(answer, key.end()) if key else None


def _object_at(answer: bytes, start: int) -> dict[str, Any] | None:
    try:
        found, _ = _READ.raw_decode(answer[start : start + TAIL_BYTES].decode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _openai(usage: dict[str, Any]) -> Usage:
    """Chat and completions say prompt/completion, responses say input/output."""
    prompt = usage.get("prompt_tokens", usage.get("input_tokens"))
    details = usage.get("prompt_tokens_details", usage.get("input_tokens_details"))
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Usage(_count(prompt), _count(cached), _count(usage.get("completion_tokens", usage.get("output_tokens"))))


def _anthropic(usage: dict[str, Any]) -> Usage:
    """`input_tokens` leaves out what came from the cache and what was newly put there."""
    cached, created = _count(usage.get("cache_read_input_tokens")), _count(usage.get("cache_creation_input_tokens"))
    fresh = _count(usage.get("input_tokens"))
    prompt = None if fresh is None else fresh + (cached or 0) + (created or 0)
    return Usage(prompt, cached, _count(usage.get("output_tokens")))


def _count(field: Any) -> int | None:
    return field if isinstance(field, int) and field >= 0 else None


class HideUsage:
    """Drops the usage chunk from one stream of server-sent events, and nothing else.

    Bytes come out as they went in and as soon as they came, but for a beginning of an event that may still turn out
    to be the usage chunk. Call `end` when the stream is over: it gives what was held.
    """

    __slots__ = ("_done", "_held", "_passing")

    def __init__(self) -> None:
        self._held = b""
        self._passing = False  # inside an event whose beginning has gone out
        self._done = False  # the chunk has been dropped

    def feed(self, chunk: bytes) -> bytes:
        """What may go out now of all that came."""
        if not self._held and (self._done or (not self._passing and _plain(chunk))):
            return chunk
        chunk = self._held + chunk
        self._held = b""
        out = []
        start = 0
        while not self._done and (end := _EVENT_END.search(chunk, start)):
            event = chunk[start : end.end()]
            start = end.end()
            if self._passing or not _is_usage_chunk(event):
                out.append(event)
            else:
                self._done = True
            self._passing = False
        out.append(self._release(chunk[start:]))
        return b"".join(out)

    def end(self) -> bytes:
        held, self._held = self._held, b""
        return held

    def _release(self, rest: bytes) -> bytes:
        """Of an unfinished event: all of it, unless it may be the usage chunk; then nothing."""
        if self._done or not rest:
            return rest
        if not self._passing and _may_be_usage_chunk(rest):
            self._held = rest
            return b""
        self._passing = True
        out = rest.rstrip(b"\r\n")
        self._held = rest[len(out) :]  # half of the event's end, perhaps
        return out


def _plain(chunk: bytes) -> bool:
    """Whole events, none of which speaks of usage: nearly every chunk."""
    return chunk.endswith(b"\n\n") and b'"usage"' not in chunk


def _may_be_usage_chunk(part: bytes) -> bool:
    if len(part) > LARGEST_EVENT_BYTES or part[:5] != b"data:"[: len(part)]:
        return False
    return not _FULL_CHOICES.search(part)


def _is_usage_chunk(event: bytes) -> bool:
    if b'"usage"' not in event or not event.startswith(b"data:"):
        return False
    try:
        chunk = msgspec.json.decode(event[len(b"data:") :])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return isinstance(chunk, dict) and chunk.get("choices") == [] and isinstance(chunk.get("usage"), dict)
