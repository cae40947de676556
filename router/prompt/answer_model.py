"""Names a model in an answer as the client does, where it used an alias.

Nothing is decoded: engines write `"model":"NAME"` without spaces, and in JSON a quote inside a string is escaped,
so these bytes are always a key and its value. A piece that may end inside of them is held back as far as they
reach; most pieces end with an event and are searched once. That takes about 1 us for a chunk of 250 bytes; decoding
and encoding it takes three times as long. Of an engine that writes spaces there the answers have its own name for
the model.
"""

from __future__ import annotations

import msgspec


class AnswerModel:
    """Replaces `model`, as the engine names it, by `alias` in one answer. Feed all pieces, then call `flush`."""

    __slots__ = ("_alias", "_ends", "_held", "_own")

    def __init__(self, model: str, alias: str) -> None:
        self._own = b'"model":' + msgspec.json.encode(model)
        self._alias = b'"model":' + msgspec.json.encode(alias)
        self._ends = (b"\n",) if b"}" in self._own else (b"\n", b"}")  # of pieces that do not end inside of the field
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
        """Return the part held back of an answer that is over."""
        held, self._held = self._held, b""
        return held

    def _count_begun(self, piece: bytes) -> int:
        """Return how many bytes at the end of `piece` may be the beginning of the field."""
        begun, at = 0, len(piece)
        while (at := piece.rfind(b'"', -len(self._own), at)) >= 0:
            if self._own.startswith(piece[at:]):
                begun = len(piece) - at
        return begun
