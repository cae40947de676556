"""The text of a streamed answer whose token ids are not known: another engine can continue the answer from it.

Text is worse than ids, because tokenising it again does not always give the tokens that were generated. It is kept
only if the engine sends no ids, and only for answers that consist of nothing but text.

White space at the end is not sent to the next engine: chat templates may trim it (huggingface/transformers#34214),
and a word's token mostly begins with its space. If the next engine repeats that white space, the client does not
receive it twice. Pure.
"""

from __future__ import annotations

import types
from typing import Any

import msgspec

from router.prompt.answer_ids import AnswerMemory, ContinuationBudget
from router.prompt.event_bytes import TEXT, UNFINISHED

_DELTA_FIELDS = frozenset(("role", "content"))


# mypyc keeps no annotations, by which msgspec reads the fields of a class.
_CHOICE = msgspec.defstruct("Choice", [("delta", dict[str, Any], {}), ("text", str | None, None)])
_CHUNK: msgspec.json.Decoder[Any] = msgspec.json.Decoder(
    msgspec.defstruct("Chunk", [("choices", types.GenericAlias(tuple, (_CHOICE,)))])
)


class AnswerText(AnswerMemory):
    """The text that the client has; `answer` is its form inside a JSON string. `tokens`: a lower bound, counted as
    one per chunk, since an engine may put several tokens into one chunk.
    """

    __slots__ = ("_again", "_blank", "_layout", "_room", "_second", "_start", "tokens")

    def __init__(self, budget: ContinuationBudget, *, chat: bool) -> None:
        super().__init__(budget)
        self.tokens = 0
        self._start = b'"content":"' if chat else b'"text":"'
        self._blank = 0  # tokens at the end that are white space or have no text yet
        self._again = ""  # white space that the client has and the next engine may repeat
        self._layout: tuple[bytes, bytes] | None = None  # the bytes around the text; None: every event is decoded
        self._room = 0
        self._second = False  # a part after the first is being fed

    def take_plain(self, piece: bytes) -> bool:
        """Take a piece if it is one event of plain text like the event before; return whether it is."""
        if (layout := self._layout) is None:
            return False
        before, after = layout
        if not piece.startswith(before) or not piece.endswith(after):
            return False
        text = piece[len(before) : -len(after)]
        if b'"' in text or b"\\" in text:
            return False
        self._count(bool(text.strip()))
        self.add(text)
        return True

    def take(self, event: bytes) -> bytes | None:
        """Take the text of an event; return the event as the client sees it, or None if it adds anything other than
        text.
        """
        try:
            (choice,) = _CHUNK.decode(event[len(b"data: ") :]).choices
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        delta = choice.delta
        if any(value for name, value in delta.items() if name not in _DELTA_FIELDS):
            return None
        start = event.find(self._start) + len(self._start)
        found = TEXT.match(event, start) if start >= len(self._start) else None
        if found is None and (choice.text or delta.get("content")):
            return None
        text = b"" if found is None else found[0]
        if "role" in delta and not text:
            return b"" if self._second else event
        end = start + len(text)
        self._count(bool(decode_text(text).strip()))
        if self._again and text:
            new = self._without_again(text)
            if not new and UNFINISHED in event[end:]:
                return b""
            event = event[:start] + new + event[end:]
            text, end = new, start + len(new)
        if found is not None and not self._second and UNFINISHED in event[end:]:
            self._layout = event[:start], event[end:]
        self.add(text)
        return event

    def add(self, text: bytes) -> None:
        """Keep `text`, which is the inside of a JSON string."""
        if not self.full:
            self.answer += text
            if len(self.answer) > self._room:
                self._room = self.grow()

    def begin_rest(self) -> bytes:
        """Return the text for the next engine, as the inside of a JSON string; all text taken later is that
        engine's.
        """
        self._second, self._layout = True, None
        self.tokens, self._blank = self.tokens - self._blank, 0  # the blank tokens come again
        text = decode_text(bytes(self.answer))
        sent = text.rstrip()
        self._again = text[len(sent) :]
        return encode_text(sent)

    def _count(self, solid: bool) -> None:
        self.tokens += 1
        self._blank = 0 if solid else self._blank + 1

    def _without_again(self, text: bytes) -> bytes:
        decoded, common = decode_text(text), 0
        while common < min(len(decoded), len(self._again)) and decoded[common] == self._again[common]:
            common += 1
        self._again = self._again[common:] if common == len(decoded) else ""
        return encode_text(decoded[common:])


def decode_text(text: bytes) -> str:
    """Return the text of the inside of a JSON string."""
    return msgspec.json.decode(f'"{text.decode(errors="replace")}"', type=str)


def encode_text(text: str) -> bytes:
    """Return `text` as the inside of a JSON string."""
    return msgspec.json.encode(text)[1:-1]
