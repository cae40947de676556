"""The last events of a stream: they determine where the next engine begins if the client lacks some text of the
tokens so far.

An engine may hold text back: with `stop` strings it holds the last characters, which could begin a stop string; a
parser of tools or reasoning holds text that could begin a call. The next engine does not have that text, so it must
generate its tokens again.

    stop strings   the engine holds as many characters as the longest string has, less one. So the last tokens, as
                   many as may have more text than that, are dropped, and the next engine must repeat the part of
                   their text that the client has (`again`). At temperature 0 it does; other text is refused. With
                   `include_stop_str_in_output` nothing is held, but a string may begin before the end, so that as
                   much text must be repeated.
    parsers        hold what they like: whether they do is determined by comparing the text of the last tokens
                   (`Tokenization.detokenize`) with the text sent. Tokens without any text sent may be dropped.

vLLM 0.32: v1/engine/detokenizer.py, tool_parsers/hermes_tool_parser.py. Pure.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import msgspec

from router.prompt.event_bytes import TEXT

EVENTS = 8  # kept for parsers
STOP_CHARS = 64  # longest stop string
BROKEN_CHARACTER = "\ufffd"


class StopStrings(NamedTuple):
    """A request's stop strings. `chars`: length of the longest; `included`: it is part of the answer."""

    chars: int
    included: bool


class _Event(NamedTuple):
    ids: list[int]
    text: str  # that the client has received


class AnswerTail:
    """The last events of one part of an answer, as the engine sent them. `stop`: the request's stop strings."""

    def __init__(self, stop: StopStrings | None = None) -> None:
        self.events: deque[bytes] = deque(maxlen=EVENTS + (0 if stop is None else stop.chars))
        self.stop = stop

    def ids(self) -> list[int]:
        """The token ids of the last events."""
        return [id for event in self._read() for id in event.ids]

    def is_all(self, text: str) -> bool:
        """Return whether the client has received all of `text`, the text of `ids`. `text` may lack leading spaces,
        and may begin and end inside a character.
        """
        sent = "".join(event.text for event in self._read())
        stripped = text.rstrip(BROKEN_CHARACTER)
        return sent == stripped or (bool(core := stripped.lstrip(BROKEN_CHARACTER + " ")) and sent.endswith(core))

    def drop_unsent(self) -> int:
        """Drop the last events that have no text; return how many tokens these events have, 0 if there are none."""
        dropped = 0
        events = self._read()
        while events and not events[-1].text:
            dropped += len(events.pop().ids)
            self.events.pop()
        return dropped

    def rewind(self) -> tuple[int, str] | None:
        """Return how many tokens of the part to drop so that the next engine sees every stop string whole, and the
        text of these tokens that the client has; None if the kept events do not reach back far enough.
        """
        assert self.stop is not None
        held = self.stop.chars - 1
        tokens, sent = 0, ""
        for event in reversed(self._read()):
            if len(sent) >= held and event.text:  # so how much of the earlier text is held is certain
                return tokens, sent if self.stop.included else sent[held:]
            tokens += len(event.ids)
            sent = event.text + sent
        return (tokens, sent) if len(self.events) < (self.events.maxlen or 0) else None

    def _read(self) -> list[_Event]:
        return [_read_event(event) for event in self.events]


def match_again(before: bytes, plain: bytes, again: str, *, last: bool) -> tuple[bytes, str] | None:
    """Return the beginning of an event, up to its ids, without the text `again` that the client has (empty if the
    event has no other text), and the part of `again` that is still to come. None if the event has other text, or is
    the `last` event and has too little. `plain`: the bytes in front of the text.
    """
    start = before.find(plain) + len(plain)
    if start < len(plain) or (found := TEXT.match(before, start)) is None:
        return None
    text: str = msgspec.json.decode(b'"' + found[0] + b'"')
    if again.startswith(text) and not last:
        return b"", again[len(text) :]
    if not text.startswith(again):
        return None
    return before[:start] + msgspec.json.encode(text[len(again) :])[1:-1] + before[found.end() :], ""


def _read_event(event: bytes) -> _Event:
    (choice,) = msgspec.json.decode(event[len(b"data: ") :])["choices"]
    delta: dict[str, Any] = choice.get("delta") or {}
    return _Event(choice["token_ids"], delta.get("content") or choice.get("text") or "")
