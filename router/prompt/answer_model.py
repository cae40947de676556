"""Names a model in an answer as the client does, where it used an alias.

Nothing is decoded: engines write `"model":"NAME"` without spaces, and in JSON a quote inside a string is escaped, so
these bytes are always a key and its value. A piece that may end inside of them is held back as far as they reach; most
pieces end with an event and are searched once. That takes about 1 us for a chunk of 250 bytes; decoding and encoding
it takes three times as long. Of an engine that writes spaces there the answers have its own name for the model.
"""

from __future__ import annotations

import msgspec


class AnswerModel:
    """Replaces `model`, as the engine names it, by `alias` in one answer. Feed all pieces, then call `flush`."""

    __slots__ = ("_alias", "_held", "_own")

    def __init__(self, model: str, alias: str) -> None:
        self._own = b'"model":' + msgspec.json.encode(model)
        self._alias = b'"model":' + msgspec.json.encode(alias)
        self._held = b""

    def feed(self, piece: bytes) -> bytes:
        """Return what may be sent of the answer so far."""
        if self._held:
            piece, self._held = self._held + piece, b""
        piece = piece.replace(self._own, self._alias)
        if piece.endswith((b"\n", b"}")) or not (held := self._count_begun(piece)):
            return piece
        self._held = piece[-held:]
        return piece[:-held]

    def flush(self) -> bytes:
        """Return what was held back of an answer that is over."""
        held, self._held = self._held, b""
        return held

    def _count_begun(self, piece: bytes) -> int:
        """Return how many bytes at the end of `piece` may be the beginning of the field."""
        begun, at = 0, len(piece)
        while (at := piece.rfind(b'"', -len(self._own), at)) >= 0:
            if self._own.startswith(piece[at:]):
                begun = len(piece) - at
        return begun
