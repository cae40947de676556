"""Counts the pieces of a streamed answer as its bytes arrive, at whatever byte a read ends."""

from __future__ import annotations

PIECE = b'"content":'  # stands once in each piece of an answer


class Pieces:
    """Counter for one answer; `seen` is the count so far."""

    def __init__(self) -> None:
        self.seen = 0
        self._rest = b""

    def read(self, body: bytes) -> None:
        body = self._rest + body  # a read may end within what is counted
        self.seen += body.count(PIECE)
        self._rest = body[1 - len(PIECE) :]
