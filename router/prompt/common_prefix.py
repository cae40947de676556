"""The length of the common prefix of two texts, two JSON bodies, or two lists of ids."""

from __future__ import annotations

from array import array


def common_length(one: bytes | str | array[int], other: bytes | str | array[int]) -> int:
    """Return the number of bytes, characters or ids that both begin with, in the time of comparing them twice."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
