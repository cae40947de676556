"""JSEW, join the shortest expected work: Dynamo's cost with a decode term for the work that answers there still
owe.

    cost     = prefill_load_scale * max(0, queued prefill + prompt - credit) + decode            credit as in Dynamo's
    decode   = (decode_footprint_weight + decode_work_scale * expected / prompt) * charged
    charged  = unshared * (unshared / mean unshared) ^ (decode_load_exponent - 1)
    unshared = blocks in use * requests ^ decode_share_exponent        this request's prompt counts as in use
    expected = moving average of the prompts' uncached tokens, this one's at its longest holder included

Blocks in use measure how much is at a target, not how much is still to be done: a long prompt with a short answer
is nearly over, a short one with a long answer stays for minutes. So the charge grows faster than the blocks, and
grows with the work that recent requests brought relative to this one.

Source: ai-dynamo/dynamo, lib/router-plugins/builtin/src/jsew.rs, with its defaults, which were tuned as a set on
1,200 Claude Code sessions, 16 workers, in simulation, for the time to the last token.

Blocks that several requests share count once; `decode_share_exponent` is meant to undo this.

Differences: of this request's prompt Dynamo adds only the blocks that no running request has at the target, here
all are added. `decode_work_exponent` is left out (its default 1 changes nothing), and so are the oracle of answer
lengths, decayed credit and the cost per active request, which are off by default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scorers.blocks import Credit, block_tokens, sent_tokens, split_prefill, whole_tokens
from scorers.contract import Needs, Row, Scorer, Unit, View
from scorers.parameters import check_above_0, check_at_least, check_shares
from scorers.row_loops import charged_blocks


@dataclass
class Jsew(Scorer):
    """Blocks to prefill there, less those that caches save, plus a charge for the decoding work that is left there.

    Missing: a row with an unknown overlap gets the mean credit of the others; an unknown pool holds nothing; where
    the prompt's length is unknown, the longest run that any row holds stands in for it. The load is the router's
    own bookings, which are never missing.
    """

    needs = Needs.CACHE | Needs.POOL | Needs.LOAD
    unit = Unit.BLOCKS

    overlap_score_credit: float = 1.0
    host_cache_hit_weight: float = 0.75
    disk_cache_hit_weight: float = 0.25
    shared_cache_multiplier: float = 0.0
    prefill_load_scale: float = 1.0
    decode_footprint_weight: float = 1.526
    decode_work_scale: float = 17.601
    decode_load_exponent: float = 1.2
    decode_share_exponent: float = 0.13
    ema_alpha: float = 0.01737

    _uncached_tokens: float | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        check_at_least(0, **{name: value for name, value in vars(self).items() if not name.startswith("_")})
        check_above_0(decode_load_exponent=self.decode_load_exponent, ema_alpha=self.ema_alpha)
        check_shares(ema_alpha=self.ema_alpha)

    def score(self, view: View) -> Sequence[float]:
        rows, whole, unit = view.rows, whole_tokens(view), block_tokens(view.rows)
        credits = Credit.of(self).of_rows(view)
        weight = self.decode_footprint_weight + self.decode_work_scale * self._expected(view) / max(unit, whole)
        scale = self.prefill_load_scale
        return [
            scale * max(0.0, row.load.prefill_tokens + whole - spared) / unit + weight * blocks
            for row, spared, blocks in zip(rows, credits, self._charged(rows, whole, unit), strict=True)
        ]

    def parts(self, view: View) -> Mapping[str, Sequence[float]]:
        rows, whole, unit = view.rows, whole_tokens(view), block_tokens(view.rows)
        credits = Credit.of(self).of_rows(view)
        ahead = [max(0.0, row.load.prefill_tokens + whole - credit) for row, credit in zip(rows, credits, strict=True)]
        charged = self._charged(rows, whole, unit)
        owed = self.decode_work_scale * self._expected(view) / max(unit, whole)
        return {
            **split_prefill(rows, ahead, self.prefill_load_scale / unit),
            "decode_footprint": [self.decode_footprint_weight * blocks for blocks in charged],
            "decode_work": [owed * blocks for blocks in charged],
        }

    def picked(self, view: View, row: Row) -> None:
        self._uncached_tokens = self._expected(view)

    def _expected(self, view: View) -> float:
        """Return the moving average of uncached tokens, this request's included."""
        longest = max([sent_tokens(row.overlap) for row in view.rows if row.overlap is not None], default=0)
        uncached = max(0.0, whole_tokens(view) - longest)
        before = self._uncached_tokens
        return uncached if before is None else self.ema_alpha * uncached + (1 - self.ema_alpha) * before

    def _charged(self, rows: Sequence[Row], whole: int, unit: int) -> list[float]:
        """Return the blocks that each row is charged for."""
        return charged_blocks(rows, whole, unit, self.decode_share_exponent, self.decode_load_exponent)
