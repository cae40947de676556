"""Counts the distinct cache blocks that live prompts use: a prefix that sixty prompts share counts once.

Block keys are chained: equal keys at one position mean equal blocks at all positions before it. So live prompts are
paths of a tree. In lexicographic order of their keys, the blocks that a prompt shares with any other prompt are the
blocks that it shares with one of its two neighbours:

    distinct blocks = blocks of all prompts - blocks that each prompt shares with the one before it

Shared blocks are found by bisection, so adding a prompt of 6,250 blocks to 60 others takes some microseconds, and
memory for one entry, however long the prompt is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from router.kvcache.events import Key


class LivePrompt:
    """A live prompt, by the keys of its full blocks. `shared` is how many it shares with the prompt before it."""

    __slots__ = ("keys", "shared")

    def __init__(self, keys: Sequence[Key], shared: int) -> None:
        self.keys = keys
        self.shared = shared


class LiveBlocks:
    """The live prompts of a target. `count` is the number of distinct blocks in use."""

    __slots__ = ("_on_shared", "_prompts", "count")

    def __init__(self, on_shared: Callable[[LivePrompt], object] = lambda prompt: None) -> None:
        """`on_shared` is called with each prompt whose `shared` changes because another is added or removed."""
        self._on_shared = on_shared
        self._prompts: list[LivePrompt] = []  # in lexicographic order of their keys
        self.count = 0

    def __len__(self) -> int:
        """Return the number of live prompts."""
        return len(self._prompts)

    def add(self, keys: Sequence[Key]) -> LivePrompt:
        """Add a prompt, and return the entry to pass to `remove`."""
        prompts = self._prompts
        first, before, after = self._find_place(keys)
        prompt = LivePrompt(keys, before)
        if first < len(prompts) and prompts[first].shared != after:
            prompts[first].shared = after
            self._on_shared(prompts[first])
        prompts.insert(first, prompt)
        self.count += len(keys) - max(before, after)
        return prompt

    def remove(self, prompt: LivePrompt) -> None:
        """Remove a prompt that was added."""
        prompts = self._prompts
        place, _, _ = self._find_place(prompt.keys)
        while prompts[place] is not prompt:  # among prompts with equal keys
            place += 1
        del prompts[place]
        after = 0
        if place < len(prompts):
            after = prompts[place].shared
            if prompt.shared < after:
                prompts[place].shared = prompt.shared
                self._on_shared(prompts[place])
        self.count -= len(prompt.keys) - max(prompt.shared, after)

    def count_leading(self, keys: Sequence[Key]) -> int:
        """Return how many of these leading blocks live prompts use."""
        _, before, after = self._find_place(keys)
        return max(before, after)

    def count_reused(self) -> int:
        """Return how many distinct blocks at least two live prompts use, in time linear in the number of prompts.

        The prompts that use a block follow each other, so the block is counted at the first prompt that shares it
        with the prompt before.
        """
        reused = before = 0
        for prompt in self._prompts:
            reused += max(0, prompt.shared - before)
            before = prompt.shared
        return reused

    def _find_place(self, keys: Sequence[Key]) -> tuple[int, int, int]:
        """Return the first place for these keys, and the numbers of blocks shared with the prompts before and at
        that place.
        """
        prompts = self._prompts
        first, last = 0, len(prompts)
        before = after = 0
        while first < last:
            middle = (first + last) // 2
            other = prompts[middle].keys
            shared = count_shared(keys, other, min(before, after))
            if shared == len(keys) or (shared < len(other) and keys[shared] < other[shared]):
                last, after = middle, shared
            else:
                first, before = middle + 1, shared
        return first, before, after


def count_shared(one: Sequence[Key], other: Sequence[Key], at_least: int = 0) -> int:
    """Return how many leading keys are equal; the first `at_least` are known to be equal."""
    low, high = at_least, min(len(one), len(other))
    if low == high or one[low] != other[low]:
        return low
    low += 1
    while low < high:
        middle = (low + high) // 2
        if one[middle] == other[middle]:
            low = middle + 1
        else:
            high = middle
    return low
