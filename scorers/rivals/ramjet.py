"""Ramjet: the cached prefix, up to a cap, less what the target's load is worth.

    score    = affinity - alpha * (requests + queued prefill / load_unit_tokens)         the highest wins
    affinity = min(most, cap) - min(most - held, cap)                   blocks of `affinity_block_tokens`, whole ones

`most` is the number of blocks that the warmest target holds. Counted downwards from `most`, differences between
long prefixes survive the cap, so a long session stays; and where no other target holds nearly as much as the
warmest, all others have the same affinity, so a large gap in load wins over any prefix. Among equal scores the
longer prefix wins, then one at random.

Source: Helix's Ramjet load balancer (github.com/helixml/ramjet, src/router.rs) in the form of ai-dynamo/dynamo,
lib/router-plugins/builtin/src/ramjet.rs, with its defaults and its `relative` affinity.

Differences: `absolute` and `marginal` affinities are left out, as are Dynamo's lane for long prompts and its
rotation among equals. Ramjet itself fingerprints 2 KB of text per block and charges each request 1 to 8 units for
its uncached bytes; in a mode that is not its default, the charge ends at the first token. Dynamo's form, and this
one, is that mode with tokens and the queued prefill of a target as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scorers.blocks import fill_held
from scorers.contract import Needs, Scorer, Unit, View
from scorers.parameters import check_at_least

LONGER = 1e-9
"""Worth of a block if scores are equal: a million blocks stay below the least difference that a queued token
makes.
"""


@dataclass(frozen=True)
class Ramjet(Scorer):
    """Weighted load less the affinity to the prompt's prefix, in blocks of `affinity_block_tokens`.

    Held is what the GPU holds or was just sent. Missing: a row with an unknown overlap is taken to hold what the
    others hold on average. The load is the router's own bookings, which are never missing.
    """

    needs = Needs.CACHE | Needs.LOAD
    unit = Unit.RAW

    alpha: float = 4.0
    affinity_block_tokens: int = 512
    max_affinity_blocks: int = 32
    load_unit_tokens: int = 8192

    def __post_init__(self) -> None:
        check_at_least(0, alpha=self.alpha)
        check_at_least(1, affinity_block_tokens=self.affinity_block_tokens)
        check_at_least(1, max_affinity_blocks=self.max_affinity_blocks, load_unit_tokens=self.load_unit_tokens)

    def score(self, view: View) -> Sequence[float]:
        cap, alpha, unit_tokens = self.max_affinity_blocks, self.alpha, self.load_unit_tokens
        held = [int(tokens) // self.affinity_block_tokens for tokens in fill_held(view.rows)]
        most = max(held)
        return [
            alpha * (row.load.requests + row.load.prefill_tokens / unit_tokens)
            - (min(most, cap) - min(most - blocks, cap))
            - LONGER * blocks
            for row, blocks in zip(view.rows, held, strict=True)
        ]

    def parts(self, view: View) -> Mapping[str, Sequence[float]]:
        requests = [self.alpha * row.load.requests for row in view.rows]
        queued = [self.alpha * row.load.prefill_tokens / self.load_unit_tokens for row in view.rows]
        rest = zip(self.score(view), requests, queued, strict=True)
        return {
            "requests": requests,
            "queued_prefill": queued,
            "affinity": [cost - count - tokens for cost, count, tokens in rest],
        }
