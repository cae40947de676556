"""Prompts as names of their blocks: contexts of 80,000 tokens without any token ids.

A context is a list of spans (`model.py`). Each of its full blocks gets a name: a hash over the name before it and
the pieces of spans in the block, so that names are equal exactly where the prefixes' tokens would be. A turn costs
only its new tokens. The router's index receives such names through ordinary events: `BlockNameKeyring` reads the
keys from the event's "tokens" instead of computing them.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from struct import Struct
from typing import SupportsIndex, cast, overload

from xxhash import xxh3_64_intdigest as digest

from router.kvcache.block_keys import Keyring
from router.kvcache.bulk import SHORT
from router.kvcache.events import Key
from router.lab.workloads.model import Session, Span

_piece = Struct("<QII").pack  # source, first token, number of tokens
_parent = Struct("<Q").pack
SOURCES = (1 << 64) - 1  # answers have negative sources


class SessionContext:
    """A session's prompts and answers so far. `names` holds the names of the full blocks."""

    __slots__ = ("_block_tokens", "_open", "_open_tokens", "_spans", "names", "tokens")

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._spans: list[Span] = []
        self._open: list[bytes] = []  # pieces of the block that is not full yet
        self._open_tokens = 0
        self.names = array("Q")
        self.tokens = 0

    def truncate(self, tokens: int) -> None:
        """Cut the context to its first `tokens` tokens."""
        if tokens >= self.tokens:
            return
        size = self._block_tokens
        spans, self._spans = self._spans, []
        del self.names[tokens // size :]
        self.tokens = len(self.names) * size
        self._open, self._open_tokens = [], 0
        start = 0
        for source, length in spans:
            take = min(length, tokens - start)
            if take <= 0:
                break
            self._spans.append(Span(source, take))
            if start + take > self.tokens:
                self._take(source, max(0, self.tokens - start), take)
            start += take

    def append_turn(self, session: Session, number: int) -> int:
        """Append a turn's prompt and answer, cutting the context before to the part that the turn keeps. Return the
        prompt's length in tokens.
        """
        turn = session.turns[number]
        self.truncate(turn.context_tokens)
        for span in turn.fresh:
            self.add(span)
        prompt_tokens = self.tokens
        self.add(session.answer(number))
        return prompt_tokens

    def add(self, span: Span) -> None:
        """Append `span`."""
        self._spans.append(span)
        self._take(span.source, 0, span.tokens)

    def _take(self, source: int, start: int, end: int) -> None:
        """Append tokens `start` to `end` of a source, and name the blocks that become full."""
        size, names = self._block_tokens, self.names
        self.tokens += end - start
        while start < end:
            count = min(size - self._open_tokens, end - start)
            self._open.append(_piece(source & SOURCES, start, count))
            self._open_tokens += count
            start += count
            if self._open_tokens == size:
                names.append(digest(_parent(names[-1] if names else 0) + b"".join(self._open)) & SHORT)
                self._open, self._open_tokens = [], 0


class NamedTokens(Sequence[int]):
    """Placeholder for the ids of some blocks and `more` tokens after them. Simulations read only its length."""

    __slots__ = ("_block_tokens", "_more", "names")

    def __init__(self, names: Sequence[int], block_tokens: int, more: int = 0) -> None:
        self.names = names
        self._block_tokens = block_tokens
        self._more = more

    def __len__(self) -> int:
        return len(self.names) * self._block_tokens + self._more

    @overload
    def __getitem__(self, at: SupportsIndex) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> NamedTokens: ...
    def __getitem__(self, at: SupportsIndex | slice) -> int | NamedTokens:
        """Return the tokens from block boundary `at.start` on. Raises TypeError for anything else."""
        if isinstance(at, slice) and at.stop is None and at.step is None and at.start % self._block_tokens == 0:
            return NamedTokens(self.names[at.start // self._block_tokens :], self._block_tokens, self._more)
        raise TypeError("simulated tokens have no ids, and are sliced at block boundaries only")


class BlockNameKeyring(Keyring):
    """A keyring that uses the names of simulated blocks as their keys: they are chained hashes already."""

    def chain(
        self,
        parent: Key,
        token_ids: array[int] | Sequence[int],
        block_tokens: int,
        extras: tuple[bytes, ...] | None = None,
    ) -> list[Key]:
        return cast("list[Key]", list(cast(NamedTokens, token_ids).names))
