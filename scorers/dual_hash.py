"""Two targets for prompts that begin alike, always the same two: the candidates of DualMap.

    keep the two rows with the least hash(salt, prefix, target)

DualMap (arXiv 2602.06502) maps a prompt's prefix to two instances by two hash functions: prompts that begin alike meet
at one of two places, and different ones spread by the power of two choices. There two rings of virtual nodes give the
two; here the first two of a rendezvous order (`consistent_hash.py`), which never fall together, and where a target goes
the third takes over for its prefixes alone.

There a prefix is as short as can be, and grows by a block while more than its share of recent requests begins with it.
That takes a memory of requests, which a filter has not: here its length is stated. 32 blocks of 16 tokens are the 512
tokens of a block in the traces that the paper uses: past most shared system prompts, and a conversation that grows into
them moves at 2, 4, 8, ... blocks, when little of it is cached. Where all prompts share a longer beginning, raise it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nsmallest

from scorers.chance import draws
from scorers.contract import Filter, Needs, View


@dataclass(frozen=True)
class DualHash(Filter):
    """Keeps two targets, the same two for every prompt with the same first `blocks` blocks.

    Lengths are powers of two: the longest that is at most `blocks`, and at most the prompt. `salt` gives other pairs.
    Missing: of a prompt whose beginning is not known, all stay.
    """

    needs = Needs.CACHE

    blocks: int = 32
    salt: int = 0

    def __post_init__(self) -> None:
        if self.blocks < 1:
            raise ValueError(f"blocks: at least 1, not {self.blocks}")

    def keep(self, view: View) -> Sequence[bool]:
        known = view.prefixes[: self.blocks.bit_length()]
        prefix = known[-1] if known else view.prefix
        if prefix is None or len(view.rows) <= 2:
            return [True] * len(view.rows)
        lots = draws(self.salt, prefix, [row.target for row in view.rows], use="dual_hash")
        second = nsmallest(2, lots)[1]
        return [lot <= second for lot in lots]
