"""What an approximate prefix tree per worker would say, read off our index: for policies that were made around one.

SGLang's and Ray's routers remember the text that they sent to each worker in a tree of characters. Their match is our
overlap, in whatever tier (a tree knows none), and a tree's size is all that the index knows a target to hold. The index
forgets what the engine evicts, a tree only what it evicts itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from scorers.contract import Row
from scorers.polled import fill_missing


def match_tokens(rows: Sequence[Row]) -> list[int]:
    """Leading prompt tokens that each row holds in any tier or was just sent. An unknown overlap matches nothing.

    Not the mean of the others: where the longest match decides, that could make an unknown target a holder.
    """
    return [0 if (o := row.overlap) is None else max(o.expected_tokens, o.disk_tokens) for row in rows]


def match_rate(longest: int, prompt_tokens: int | None) -> float:
    """The share of the prompt that the longest match covers. Of a prompt of unknown length any match is all of it."""
    if not prompt_tokens:
        return float(longest > 0)
    return min(1.0, longest / prompt_tokens)


def tree_sizes(rows: Sequence[Row]) -> list[float] | None:
    """Tokens in each row's tree, None where no row's is known.

    A row whose size is unknown gets the mean of the others: taken for empty it would win every cold prompt, which a
    target that fails to tell must not (how smallest-tree placement comes to feed a broken worker).
    """
    held = [None if row.held_tokens is None else float(row.held_tokens) for row in rows]
    return None if all(tokens is None for tokens in held) else fill_missing(held)
