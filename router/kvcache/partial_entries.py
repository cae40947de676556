"""Entries inside blocks: the places where prompts ended before an engine that re-uses parts of blocks.

An engine with Mamba states and `--prefix-match-unit` hashes prompts in units smaller than a block. It keeps an entry
for the last whole unit of each prompt, in full attention and as a state. A later prompt re-uses its run of whole
blocks, and of the block after them up to the highest entry, as far as there is a state (vLLM 0.32,
FullAttentionManager and MambaManager in v1/core/single_type_kv_cache_manager.py).

    blocks of 4 units   # # # # | # # # # | # # . .     a prompt of 10 units and a rest: an entry at 10
    the next turn       # # # # | # # # # | # # # # | # # .

An event names the tokens of the last unit alone, after one that mostly was never announced. So the place of an entry in
a chain is unknown until a prompt arrives that has the same engine's hash there (`missed_prefixes.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from router.kvcache.block_keys import Keyring
from router.kvcache.events import Key
from router.kvcache.tail_groups import TailGroup, Tails, TailShape
from router.kvcache.tokenized_prompt import TokenizedPrompt


class PartialEntries:
    """The entries of one target in its groups of full attention. `unit`: the tokens of a unit."""

    __slots__ = ("_groups", "unit")

    def __init__(self, unit: int) -> None:
        self.unit = unit
        self._groups = Tails({}, 1)

    def __iter__(self) -> Iterator[tuple[int, TailGroup]]:
        """Yield the number and the entries of each group."""
        return iter(self._groups.groups.items())

    def group(self, number: int) -> TailGroup:
        """Return the entries of a group of full attention."""
        return self._groups.group(number, TailShape(self.unit, 1, False))

    def find_last(self, units: Sequence[Key], end: int, limit: int) -> int:
        """Return the highest number of leading units, above `end` and below `limit`, at which all groups have an entry;
        `end` if there is none.
        """
        kinds = self._groups.kinds.values()  # one, or none before the first entry
        places = range(min(limit - 1, len(units)), end, -1)
        return next((place for kind in kinds for place in places if kind.holds(units[place - 1])), end)


def split_into_units(keyring: Keyring, prompt: TokenizedPrompt, block_tokens: int, unit: int) -> list[Key]:
    """Return the keys of all whole units of `prompt` (with `origin`); a block's last unit has the block's key."""
    origin, keys, units = prompt.origin, prompt.keys[block_tokens], list[Key]()
    assert origin is not None
    parent = keyring.root(origin.model, origin.adapter and origin.adapter[0], origin.salt)
    for number in range(len(keys) + 1):
        start = number * block_tokens
        units += keyring.chain(parent, prompt.ids[start : start + block_tokens], unit)
        if number < len(keys):
            parent = units[-1] = keys[number]
    return units
