"""Replaces the model's name in an answer by the alias that the client used.

No JSON is decoded: engines write `"model":"NAME"` without spaces, and a quote inside a JSON string is escaped, so
these bytes are always a key and its value. If a piece ends with what may be the beginning of the field, those bytes
are held back; most pieces end with an event and are searched once. That takes about 1 us for a chunk of 250 bytes;
decoding and encoding the chunk takes three times as long. If an engine writes spaces in the field, its answers keep
its own name for the model.
"""

from __future__ import annotations

import msgspec


class AnswerModel:
    """Replaces `model`, as the engine names it, by `alias` in one answer. Feed all pieces, then call `flush`."""

    __slots__ = ("_alias", "_ends", "_held", "_own")

    def __init__(self, model: str, alias: str) -> None:
        self._own = b'"model":' + msgspec.json.encode(model)
        self._alias = b'"model":' + msgspec.json.encode(alias)
        self._ends = (b"\n",) if b"}" in self._own else (b"\n", b"}")  # of pieces that do not end inside the field
        self._held = b""

    def feed(self, piece: bytes) -> bytes:
        """Return the part of the answer that may be sent now."""
        if self._held:
            piece, self._held = self._held + piece, b""
        if piece.endswith(self._ends):
            return piece.replace(self._own, self._alias)
        parts = piece.split(self._own)
        if held := self._count_begun(parts[-1]):
            self._held = parts[-1][-held:]
            parts[-1] = parts[-1][:-held]
        return self._alias.join(parts)

    def flush(self) -> bytes:
        """Return the bytes held back, once the answer is over."""
        held, self._held = self._held, b""
        return held

    def _count_begun(self, piece: bytes) -> int:
        """Return how many bytes at the end of `piece` may be the beginning of the field."""
        begun, at = 0, len(piece)
        while (at := piece.rfind(b'"', -len(self._own), at)) >= 0:
            if self._own.startswith(piece[at:]):
                begun = len(piece) - at
        return begun
