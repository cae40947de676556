"""The last events of a stream: where the next engine begins if the client does not have all text of the tokens so
far.

An engine may hold text back: of `stop` strings it holds the last characters, which could be the beginning of one; a
parser of tools or reasoning holds what could be the beginning of a call. The next engine knows nothing of that
text, so it must say the tokens of it again.

    stop strings   as many characters are held as the longest string has, less one. So the last tokens are dropped that
                   may have more than that in all, and what the client has of their text must come again (`again`). At
                   temperature 0 it does; other text is refused. With `include_stop_str_in_output` nothing is held, but
                   a string may begin before the end, so that as much must come again.
    parsers        hold what they like: whether they do is found out by comparing the text of the last tokens
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
    """`chars`: length of the longest; `included`: it is part of the answer."""

    chars: int
    included: bool


class _Event(NamedTuple):
    ids: list[int]
    text: str  # that the client has got


class AnswerTail:
    """The last events of one part of an answer, as the engine sent them. `stop`: of the request, if it has any."""

    def __init__(self, stop: StopStrings | None = None) -> None:
        self.events: deque[bytes] = deque(maxlen=EVENTS + (0 if stop is None else stop.chars))
        self.stop = stop

    def ids(self) -> list[int]:
        """The token ids of the last events."""
        return [id for event in self._read() for id in event.ids]

    def is_all(self, text: str) -> bool:
        """Return whether the client has got all of `text`, which is that of `ids`. It may lack leading spaces and
        begin and end inside a character.
        """
        sent = "".join(event.text for event in self._read())
        stripped = text.rstrip(BROKEN_CHARACTER)
        return sent == stripped or (bool(core := stripped.lstrip(BROKEN_CHARACTER + " ")) and sent.endswith(core))

    def drop_unsent(self) -> int:
        """Drop the last events, which have no text; return how many tokens they have, 0 if there are none."""
        dropped = 0
        events = self._read()
        while events and not events[-1].text:
            dropped += len(events.pop().ids)
            self.events.pop()
        return dropped

    def rewind(self) -> tuple[int, str] | None:
        """Return how many tokens of the part to drop so that the next engine sees every stop string whole, and the
        text of these that the client has; None if the events do not reach back so far.
        """
        assert self.stop is not None
        held = self.stop.chars - 1
        tokens, sent = 0, ""
        for event in reversed(self._read()):
            if len(sent) >= held and event.text:  # then it is certain how much of the text before is held
                return tokens, sent if self.stop.included else sent[held:]
            tokens += len(event.ids)
            sent = event.text + sent
        return (tokens, sent) if len(self.events) < (self.events.maxlen or 0) else None

    def _read(self) -> list[_Event]:
        return [_read_event(event) for event in self.events]


def match_again(before: bytes, plain: bytes, again: str, *, last: bool) -> tuple[bytes, str] | None:
    """Return the beginning of an event, up to its ids, without the text `again` that the client has, nothing if
    that is all of it; and what of `again` is still to come. None: it has another text, or is the `last` event and
    has too little. `plain`: what is in front of the text.
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
