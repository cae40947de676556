"""What is known of a prompt: its token ids, and the keys of its full blocks for every block size in the fleet."""

from __future__ import annotations

from array import array
from typing import Literal, NamedTuple

from router.blocks.events import Key


class Known(NamedTuple):
    ids: array[int]  # typecode "I"
    complete: bool  # False: only a leading part (media follows), so the prompt's length is unknown
    how: Literal["given", "local", "remote"]  # who made the ids: the client, we, the engine
    keys: dict[int, list[Key]]  # by block size: one chained key per full block
    tokens_ms: float  # spent on rendering and tokenising
    keys_ms: float  # spent on hashing
