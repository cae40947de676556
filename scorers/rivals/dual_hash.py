"""A filter that keeps two targets per prompt prefix, always the same two: the candidates of DualMap.

    keep the two rows with the least hash(salt, prefix, target)

DualMap (arXiv 2602.06502) maps a prompt's prefix to two instances by two hash functions: prompts with the same
prefix meet at one of two targets, and different prefixes spread by the power of two choices. DualMap uses two rings
of virtual nodes; here the two targets are the first of a rendezvous order (`consistent_hash.py`): they never
coincide, and when one leaves, the third in the order takes over for its prefixes alone.

In DualMap a prefix is as short as possible, and grows by a block while more than its share of recent requests
begins with it. This requires a memory of requests, which a filter does not have: here the prefix length is
configured (`blocks`). 32 blocks of 16 tokens are the 512 tokens of a block in the traces that the paper uses:
longer than most shared system prompts. A growing conversation moves at 2, 4, 8, ... blocks, when little of it is
cached. If all prompts share a longer prefix, raise `blocks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nsmallest

from scorers.chance import draws
from scorers.contract import Filter, Needs, View
from scorers.parameters import check_at_least


@dataclass(frozen=True)
class DualHash(Filter):
    """Keeps two targets, the same two for every prompt with the same first `blocks` blocks.

    Lengths are powers of two: the longest that is at most `blocks`, and at most the prompt. Another `salt` gives
    other pairs. Missing: if the prompt's prefix is unknown, all rows stay.
    """

    needs = Needs.CACHE

    blocks: int = 32
    salt: int = 0

    def __post_init__(self) -> None:
        check_at_least(1, blocks=self.blocks)

    def keep(self, view: View) -> Sequence[bool]:
        known = view.prefixes[: self.blocks.bit_length()]
        prefix = known[-1] if known else view.prefix
        if prefix is None or len(view.rows) <= 2:
            return [True] * len(view.rows)
        lots = draws(self.salt, prefix, [row.target for row in view.rows], use="dual_hash")
        second = nsmallest(2, lots)[1]
        return [lot <= second for lot in lots]
