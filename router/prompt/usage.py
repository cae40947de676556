"""Reads the token usage of an answer from its first and last bytes, and drops a usage chunk that the client did not
request.

Chunks are not decoded as they pass. `UsageTail` keeps the last bytes of the answer (and the first, where they
matter) and searches them once, at the end: in JSON a quote inside a string is escaped, so `"usage":` in the bytes
is always a key, and the last one with an object is the answer's. This holds for whole bodies and for event streams
alike.

`HideUsage` drops the chunk that the router requested (`body_rewrite.py`). For the client a stream then differs from
the engine's own answer in one respect: vLLM 0.32 puts `system_fingerprint`, and per-request metrics if it is
started with them, into that last chunk instead of the one with `finish_reason`. Other chunks get no `"usage":
null`, unlike OpenAI's. An engine that always sends usage (`--enable-force-include-usage`) sends it also to clients
that did not request it; behind the router they do not see it.
"""

from __future__ import annotations

import json
import re
from collections import deque
from typing import Any, Final, NamedTuple

import msgspec

from router.prompt.prompt import Endpoint
from router.prompt.stream_error import StreamError, find_error

TAIL_BYTES: Final = 16 * 1024
EVENTS_BYTES: Final = 4 * 1024  # of each open stream of chat or completion chunks: the last one has the usage
HEAD_BYTES: Final = 4 * 1024
LARGEST_EVENT_BYTES = 64 * 1024  # a usage chunk has a few hundred bytes: longer events are not held back
MOST_KEYS = 64  # examined from the end, until one has an object; an answer may consist of nothing but keys
MAX_TOKENS: Final = 1 << 24  # a larger number is not a token count

# Python 3.11 runs code of its own at each access to an Enum's member.
_MESSAGES: Final = Endpoint.MESSAGES
_RESPONSES: Final = Endpoint.RESPONSES
_NAME = b'"usage"'
_USAGE_KEY = re.compile(rb'"usage"\s*+:\s*+(?=\{)')
_RESPONSE_ID = re.compile(rb'"id"\s*:\s*"(resp_[^"\\]{1,200})"')
_EVENT_END = re.compile(rb"\r?\n\r?\n")
_FULL_CHOICES = re.compile(rb'"choices"\s*:\s*(?:\[\s*)?[^\[\]\s]')
_REASON = re.compile(rb'\s*+:\s*+"([a-z_]+)"')
_CALL_REASONS = frozenset((b"tool_calls", b"function_call", b"tool_use"))  # OpenAI's, its older form, Anthropic's
_CALL_END = b'_call"'  # found in a tenth of the time that the next one takes
_CALL_ITEM = re.compile(rb'"type"\s*+:\s*+"(?:function|custom_tool)_call"')
_READ = json.JSONDecoder()
# Each with its line break: inside an event's JSON it would be escaped, so generated text cannot contain them.
_END_MARKS = (b"\ndata: [DONE]", b"\nevent: message_stop", b"\nevent: response.completed")


class Usage(NamedTuple):
    """Tokens of one answer as the engine counted them; None for a count that the engine did not report."""

    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None


NO_USAGE = Usage(None, None, None)


class UsageTail:
    """Collects the first and last bytes of one answer and reads its usage at the end."""

    __slots__ = ("_chunks", "_cut", "_endpoint", "_head", "_head_bytes", "_size", "_tail_bytes")

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._head = b""
        # In chats and completions nothing at the beginning matters.
        self._head_bytes = HEAD_BYTES if endpoint in (_RESPONSES, _MESSAGES) else 0
        self._tail_bytes = TAIL_BYTES
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._cut = False  # something was before the first chunk

    def feed(self, chunk: bytes) -> None:
        """Take in the next chunk of the answer."""
        if len(self._head) < self._head_bytes:
            self._head += chunk[: self._head_bytes - len(self._head)]
        chunks = self._chunks
        if not chunks and not self._head_bytes and chunk.startswith(b"data:"):
            self._tail_bytes = EVENTS_BYTES
        chunks.append(chunk)
        self._size += len(chunk)
        while self._size - len(chunks[0]) >= self._tail_bytes:
            self._size -= len(chunks.popleft())
            self._cut = True

    def ends(self) -> tuple[bytes, bytes]:
        """Return the first bytes of the answer, where they matter, and the last."""
        return self._head, self._join()

    def ended(self) -> bool:
        """Return whether the stream has sent its final event, whatever the connection does after it."""
        end = b"\n" + self._join()
        return any(mark in end for mark in _END_MARKS)

    def read_error(self) -> StreamError | None:
        """Return the error with which a stream ended; None if it reported none."""
        answer = self._join()
        return None if answer.startswith(b"{") else find_error(answer)

    def read_usage(self) -> Usage | None:
        """Return the usage in the answer; None if the answer reported none, or was cut off before it."""
        answer = self._join()
        last = _whole_usage(answer) if answer.startswith(b"{") else _last_usage(answer)
        if self._endpoint is _MESSAGES:
            first = _first_usage(self._head) or {}
            last = first | {k: v for k, v in (last or {}).items() if v is not None}
        if not last:
            return None
        return _anthropic(last) if self._endpoint is _MESSAGES else read_openai_usage(last)

    def ends_in_tool_call(self) -> bool | None:
        """Return whether the answer ended in a tool call, to which the client replies by itself; None if the last
        bytes do not show it.
        """
        answer = self._join()
        if self._endpoint is _RESPONSES:  # has no finish reason: a call is one of its output items
            if _CALL_END in answer and _CALL_ITEM.search(answer):
                return True
            return None if self._cut else False
        name = b'"stop_reason"' if self._endpoint is _MESSAGES else b'"finish_reason"'
        at = answer.rfind(name)
        reason = _REASON.match(answer, at + len(name)) if at >= 0 else None
        return None if reason is None else reason[1] in _CALL_REASONS

    def _join(self) -> bytes:
        """Return the last bytes in one piece, which is kept for the next call."""
        if len(self._chunks) != 1:
            self._chunks = deque((b"".join(self._chunks),))
        return self._chunks[0]

    def response_id(self) -> str | None:
        """Return the id under which `/v1/responses` can continue this answer; None if it has none."""
        if self._endpoint is not _RESPONSES or not (found := _RESPONSE_ID.search(self._head)):
            return None
        return found[1].decode(errors="replace")


# A short answer that is one JSON object. mypyc keeps no annotations, by which msgspec reads the fields of a class.
_JSON_ANSWER: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(
    msgspec.defstruct("JsonAnswer", [("usage", Any, None)])
)


def _whole_usage(answer: bytes) -> dict[str, Any] | None:
    """Read the usage of a tail that may be the whole answer: one strict parse costs a third of the search."""
    try:
        usage = _JSON_ANSWER.decode(answer).usage
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _last_usage(answer)
    return usage if isinstance(usage, dict) else None


def _last_usage(answer: bytes) -> dict[str, Any] | None:
    at = len(answer)
    for _ in range(MOST_KEYS):
        if (at := answer.rfind(_NAME, 0, at)) < 0:
            return None
        key = _USAGE_KEY.match(answer, at)
        if key is not None and (usage := _object_at(answer, key.end())) is not None:
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


def read_openai_usage(usage: dict[str, Any]) -> Usage:
    """Return the counts of chats and completions (prompt/completion) or responses (input/output)."""
    prompt = usage.get("prompt_tokens", usage.get("input_tokens"))
    details = usage.get("prompt_tokens_details", usage.get("input_tokens_details"))
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Usage(_count(prompt), _count(cached), _count(usage.get("completion_tokens", usage.get("output_tokens"))))


def _anthropic(usage: dict[str, Any]) -> Usage:
    """Read Anthropic's counts; `input_tokens` excludes tokens read from the cache and written to it."""
    cached, created = _count(usage.get("cache_read_input_tokens")), _count(usage.get("cache_creation_input_tokens"))
    fresh = _count(usage.get("input_tokens"))
    prompt = None if fresh is None else fresh + (cached or 0) + (created or 0)
    return Usage(prompt, cached, _count(usage.get("output_tokens")))


def _count(field: Any) -> int | None:
    return field if type(field) is int and 0 <= field <= MAX_TOKENS else None


class HideUsage:
    """Drops the usage chunk from one stream of server-sent events.

    Other bytes come out unchanged and at once, except the first bytes of an event that may still turn out to be the
    usage chunk. Call `end` when the stream is over: it returns the bytes held back.
    """

    __slots__ = ("_done", "_held", "_passing")

    def __init__(self) -> None:
        self._held = b""
        self._passing = False  # inside an event whose first bytes were sent
        self._done = False  # the usage chunk was dropped

    def feed(self, chunk: bytes) -> bytes:
        """Return the bytes that may be sent now."""
        if not self._held and (self._done or (not self._passing and _plain(chunk))):
            return chunk
        chunk = self._held + chunk
        self._held = b""
        out: list[bytes] = []
        start = 0
        while not self._done and (at := chunk.find(_NAME, start)) >= 0 and (end := _EVENT_END.search(chunk, at)):
            begin = self._pass_events(chunk, start, at, out)
            event, start = chunk[begin : end.end()], end.end()
            if self._passing or not _is_usage_chunk(event):
                out.append(event)
            else:
                self._done = True
            self._passing = False
        begin = self._pass_events(chunk, start, len(chunk), out)
        out.append(self._release(chunk[begin:]))
        return b"".join(out)

    def _pass_events(self, chunk: bytes, start: int, end: int, out: list[bytes]) -> int:
        """Append the whole events between `start` and `end` to `out`. Return where the last event there begins."""
        begin = start
        at = max(chunk.rfind(b"\n\n", start, end), chunk.rfind(b"\n\r\n", start, end))
        if at >= 0:
            begin = chunk.index(b"\n", at + 1) + 1
            self._passing = False
        while not self._passing and chunk.startswith((b"\n", b"\r"), begin):  # blank lines in front of an event
            begin += 1
        out.append(chunk[start:begin])
        return begin

    def end(self) -> bytes:
        """Return the bytes held back."""
        held, self._held = self._held, b""
        return held

    def _release(self, rest: bytes) -> bytes:
        """Return an unfinished event, or nothing while it may be the usage chunk."""
        if self._done or not rest:
            return rest
        if not self._passing and _may_be_usage_chunk(rest):
            self._held = rest
            return b""
        self._passing = True
        out = rest.rstrip(b"\r\n")
        self._held = rest[len(out) :]  # possibly half of the event's end
        return out


def _plain(chunk: bytes) -> bool:
    """Return whether the chunk consists of whole events without usage, as nearly every chunk does."""
    return chunk.endswith(b"\n\n") and b'"usage"' not in chunk


def _may_be_usage_chunk(part: bytes) -> bool:
    if len(part) > LARGEST_EVENT_BYTES or part[:5] != b"data:"[: len(part)]:
        return False
    return not _FULL_CHOICES.search(part)


def _is_usage_chunk(event: bytes) -> bool:
    if b'"usage"' not in event or not _may_be_usage_chunk(event):
        return False
    try:
        chunk = msgspec.json.decode(event[len(b"data:") :])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return isinstance(chunk, dict) and chunk.get("choices") == [] and isinstance(chunk.get("usage"), dict)
