"""Token ids of recent prompts, within a byte limit, to send an engine the beginning of a prompt that is new to it.

The longest prefix of a prompt whose number of blocks is a power of two is kept, under the key of that prefix. So
the next turn of a conversation adds nothing until the prompt has twice the length, and prompts that share the whole
prefix are kept once. The least recently used is dropped first. Prompts with a salt must not be added, because a
client without the salt must not find out what is cached.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from typing import NamedTuple

from router.kvcache.events import Key
from router.kvcache.tokenized_prompt import TokenizedPrompt

ENTRY_BYTES = 1_000  # beside the ids: keys, objects, and the slot in the dict


class RecentPrompt(NamedTuple):
    """The beginning of a prompt."""

    ids: array[int]
    block_tokens: int
    prefixes: tuple[Key, ...]  # keys of its first 1, 2, 4, 8, ... blocks; the last key is of all `ids`
    model: str  # base model
    adapter: str | None  # a LoRA's name

    def cut(self, blocks: int) -> RecentPrompt:
        """Return the first `blocks` of the prompt; `blocks` is a power of two."""
        return self._replace(ids=self.ids[: blocks * self.block_tokens], prefixes=self.prefixes[: blocks.bit_length()])


class RecentPrompts:
    """Recent prompts within `limit_bytes`; 0 keeps nothing."""

    def __init__(self, limit_bytes: int) -> None:
        self.held_bytes = 0
        self._limit_bytes = limit_bytes
        self._by_key: OrderedDict[Key, RecentPrompt] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_key)

    def add(self, prompt: TokenizedPrompt, model: str, adapter: str | None) -> None:
        """Keep the beginning of a prompt. Costs a hash lookup if it is kept already, else a copy of its ids."""
        if not self._limit_bytes or not prompt.keys:
            return
        size = min(prompt.keys)
        keys = prompt.keys[size]
        if not keys:
            return
        halvings = len(keys).bit_length()
        key = keys[(1 << (halvings - 1)) - 1]
        if key in self._by_key:
            self._by_key.move_to_end(key)
            return
        ids = prompt.ids[: size << (halvings - 1)]
        prefixes = tuple(keys[(1 << i) - 1] for i in range(halvings))
        self._by_key[key] = RecentPrompt(ids, size, prefixes, model, adapter)
        self.held_bytes += _bytes_of(ids)
        while self.held_bytes > self._limit_bytes:
            self.held_bytes -= _bytes_of(self._by_key.popitem(last=False)[1].ids)

    def by_prefix(self) -> dict[Key, RecentPrompt]:
        """Return the most recent prompt for each kept prefix. Takes 0.2 us per prefix."""
        return {key: prompt for prompt in self._by_key.values() for key in prompt.prefixes}


def _bytes_of(ids: array[int]) -> int:
    return ENTRY_BYTES + ids.itemsize * len(ids)
