"""A prompt as token ids and block keys, and the inputs of the engines' own block hashes."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Literal, NamedTuple

from router.kvcache.events import Key


class HashInputs(NamedTuple):
    """Model, adapter and salt as the engines hash them: needed to query the shared pool, and to recall blocks whose
    events were missed.
    """

    model: str  # base model, as the engines serve it
    path: str | None  # path or name that the engines were started with
    adapter: tuple[str, str] | None  # a LoRA's name and path
    salt: str | None


Cause = Literal["reasoning", "tools", "template"]
"""The part of earlier turns that a model drops or moves; "template": another one."""


class PrefixEnd(NamedTuple):
    """The end of what a chat's prompt repeats of the prompt of its turn before, which the model renders otherwise
    now.
    """

    tokens: int  # that both begin with
    of_tokens: int  # of the turn before
    cause: Cause


class TokenizedPrompt(NamedTuple):
    """Token ids and the keys of the full blocks for every block size in the fleet."""

    ids: array[int]  # typecode "I"
    complete: bool  # False: media follow, so the prompt's length is unknown
    source: Literal["given", "local", "remote"]  # the client sent the ids, the router made them, or an engine did
    keys: dict[int, Sequence[Key]]  # by block size: one chained key per full block
    tokens_ms: float  # time spent on rendering and tokenising
    keys_ms: float  # time spent on hashing
    json_ids: tuple[bytes, ...] = ()  # the ids as JSON numbers with commas, in runs; empty: not needed
    origin: HashInputs | None = None  # None: the engines' hashes of the prompt are not needed
    prefix_end: PrefixEnd | None = None  # None: it repeats the whole, or that is not known
    special_text: bool = True  # False: no text of the chat spells a special token; True: one does, or it is not known

    def keys_every(self, tokens: int) -> tuple[Key, ...]:
        """Return the keys of prefixes of `tokens`, 2 x `tokens`, ...; empty if `tokens` is not a multiple of the
        smallest block size.
        """
        size = min(self.keys, default=0)
        if not size or tokens % size:
            return ()
        step = tokens // size
        return tuple(self.keys[size][step - 1 :: step])
