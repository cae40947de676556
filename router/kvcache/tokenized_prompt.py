"""What is known of a prompt: its token ids, the keys of its full blocks for every block size in the fleet, and what
engines mix into their own hashes of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Literal, NamedTuple

from router.kvcache.events import Key


class TokenizedPrompt(NamedTuple):
    ids: array[int]  # typecode "I"
    complete: bool  # False: only a leading part (media follows), so the prompt's length is unknown
    source: Literal["given", "local", "remote"]  # who made the ids: the client, we, the engine
    keys: dict[int, Sequence[Key]]  # by block size: one chained key per full block
    tokens_ms: float  # spent on rendering and tokenising
    keys_ms: float  # spent on hashing
    json_ids: tuple[bytes, ...] = ()  # the ids as JSON numbers with commas, in runs; empty: nobody will want them

    def keys_every(self, tokens: int) -> tuple[Key, ...]:
        """The keys of the prefixes of `tokens`, 2 x `tokens`, ... length; none where no block size divides that."""
        size = min(self.keys, default=0)
        if not size or tokens % size:
            return ()
        step = tokens // size
        return tuple(self.keys[size][step - 1 :: step])


class HashInputs(NamedTuple):
    """What a prompt's blocks belong to, in the engines' words: needed only to ask the shared pool for them."""

    model: str  # base model, as the engines serve it
    path: str | None  # its path or name as the engines were started with
    adapter: tuple[str, str] | None  # a LoRA's name and path
    salt: str | None
