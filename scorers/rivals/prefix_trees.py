"""Values that an approximate prefix tree per worker would have, read from the index, for policies that were
designed around such a tree.

SGLang's and Ray's routers store the text that they sent to each worker in a tree of characters. Their match
corresponds to our overlap, in whatever tier (a tree has no tiers), and a tree's size to the number of tokens that a
target holds by the index. The index forgets what the engine evicts, a tree only what it evicts itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from scorers.contract import Row
from scorers.polled import fill_missing


def match_tokens(rows: Sequence[Row]) -> list[int]:
    """Return the leading prompt tokens that each row holds in any tier or was just sent; 0 if the overlap is
    unknown. The mean of the others would be wrong for an unknown overlap: where the longest match decides, it could
    make an unknown target a holder.
    """
    return [0 if (o := row.overlap) is None else max(o.expected_tokens, o.disk_tokens) for row in rows]


def match_rate(longest: int, prompt_tokens: int | None) -> float:
    """Return the share of the prompt that the longest match covers. If the prompt's length is unknown, 1.0 for any
    match.
    """
    if not prompt_tokens:
        return float(longest > 0)
    return min(1.0, longest / prompt_tokens)


def tree_sizes(rows: Sequence[Row]) -> list[float] | None:
    """Return the tokens in each row's tree, or None if no row's size is known. A row whose size is unknown gets the
    mean of the others. If its tree counted as empty, the row would win every cold prompt, and smallest-tree
    placement would go on feeding a broken worker that reports nothing.
    """
    held = [None if row.held_tokens is None else float(row.held_tokens) for row in rows]
    return None if all(tokens is None for tokens in held) else fill_missing(held)
