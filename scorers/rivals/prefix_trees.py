"""Answers of an approximate prefix tree per worker, read from the index: for policies that were designed around
one.

SGLang's and Ray's routers remember the text that they sent to each worker in a tree of characters. Their match is
our overlap, in whatever tier (a tree knows none), and a tree's size is the number of tokens that the index knows a
target to hold. The index forgets what the engine evicts, a tree only what it evicts itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from scorers.contract import Row
from scorers.polled import fill_missing


def match_tokens(rows: Sequence[Row]) -> list[int]:
    """Return the leading prompt tokens that each row holds in any tier or was just sent; 0 for an unknown overlap.
    The mean of the others would be wrong here: where the longest match decides, it could make an unknown target a
    holder.
    """
    return [0 if (o := row.overlap) is None else max(o.expected_tokens, o.disk_tokens) for row in rows]


def match_rate(longest: int, prompt_tokens: int | None) -> float:
    """Return the share of the prompt that the longest match covers: 1.0 for any match if its length is unknown."""
    if not prompt_tokens:
        return float(longest > 0)
    return min(1.0, longest / prompt_tokens)


def tree_sizes(rows: Sequence[Row]) -> list[float] | None:
    """Return the tokens in each row's tree, or None if no row's size is known. A row whose size is unknown gets the
    mean of the others. Taken for empty it would win every cold prompt, and smallest-tree placement would go on
    feeding a broken worker that reports nothing.
    """
    held = [None if row.held_tokens is None else float(row.held_tokens) for row in rows]
    return None if all(tokens is None for tokens in held) else fill_missing(held)
