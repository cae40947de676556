"""LBGR, learning-based greedy routing: the least predicted end-to-end latency, with a bias learned per target.

    predicted = base + alpha * queue + bias
    base      = uncached_ms_per_1k_tokens * uncached tokens / 1,000, at least 1 ms
    queue     = `base` of what was sent there, times 31/32 every 20 ms, less the rest of it when its answer has ended
    bias      = recursive least squares with forgetting of  max(1 ms, observed - base - alpha * queue when chosen)

Wu, Silwal & Zhang, "Randomization Boosts KV Caching, Learning Balances Query Load: A Joint Perspective" (arXiv
2601.18999), with the constants of its code (github.com/fzwark/KVRouting, sgl-router/src/router.rs): 1,000 ms, alpha
1, forgetting 0.95, initial covariance 10^6. Of the code's features only the bias is used. The other half of the
paper, randomised eviction, is a matter of the engines.

Differences: the code counts characters of the text that it once sent to each worker, here the index counts tokens;
the queue decays continuously instead of every 20 ms in whole ms; among predictions that differ by less than 1 ms
the code takes the first worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from scorers.blocks import whole_tokens
from scorers.contract import Needs, Outcome, Row, Scorer, Unit, View
from scorers.memory import MAX_SESSIONS, MAX_TARGETS, remember
from scorers.parameters import check_above_0, check_at_least, check_shares
from scorers.rivals.prefix_trees import match_tokens

DECAY, DECAY_S = 31 / 32, 0.020
COVARIANCE = 1e6


class BookedQueue(NamedTuple):
    """Booked milliseconds of a target at a given time."""

    ms: float
    at_s: float

    def left_ms(self, now_s: float) -> float:
        """Return the milliseconds that remain of the booking at `now_s`."""
        return self.ms * _decay(now_s - self.at_s)


class Bias(NamedTuple):
    """The estimate, by recursive least squares, of how far a target's latencies are above their prediction."""

    ms: float = 0.0
    covariance: float = COVARIANCE

    def updated(self, residual_ms: float, forgetting: float) -> Bias:
        """Return the bias with one more observation."""
        gain = self.covariance / (forgetting + self.covariance)
        return Bias(self.ms + gain * (residual_ms - self.ms), (1 - gain) * self.covariance / forgetting)


@dataclass
class Lbgr(Scorer):
    """Predicted milliseconds to the end of the answer.

    Held is what the target has in any tier or was just sent. Missing: an unknown overlap matches nothing; where the
    prompt's length is unknown, the longest match stands in for it. A target without an answer so far has no bias.
    """

    needs = Needs.CACHE
    unit = Unit.MS

    uncached_ms_per_1k_tokens: float = 1000.0
    alpha: float = 1.0
    forgetting: float = 0.95

    _queues: dict[str, BookedQueue] = field(default_factory=dict, init=False, repr=False)
    _biases: dict[str, Bias] = field(default_factory=dict, init=False, repr=False)
    _chosen_at_ms: dict[tuple[int, str], float] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        check_at_least(0, uncached_ms_per_1k_tokens=self.uncached_ms_per_1k_tokens, alpha=self.alpha)
        check_above_0(forgetting=self.forgetting)
        check_shares(forgetting=self.forgetting)

    def score(self, view: View) -> Sequence[float]:
        bases = self._bases_ms(view, view.rows)
        return [
            max(1.0, base + self.alpha * self._queued_ms(row, view.now_s) + self._biases.get(row.target, Bias()).ms)
            for row, base in zip(view.rows, bases, strict=True)
        ]

    def parts(self, view: View) -> Mapping[str, Sequence[float]]:
        """Return queue and compute as priced; the bias part is the rest of the cost, which is at least 1 ms in
        all.
        """
        compute = self._bases_ms(view, view.rows)
        queued = [self.alpha * self._queued_ms(row, view.now_s) for row in view.rows]
        rest = zip(self.score(view), compute, queued, strict=True)
        return {"queued": queued, "compute": compute, "bias": [cost - base - wait for cost, base, wait in rest]}

    def picked(self, view: View, row: Row) -> None:
        (base,) = self._bases_ms(view, [row])
        queued = self._queued_ms(row, view.now_s)
        remember(self._chosen_at_ms, (view.number, row.target), queued, MAX_SESSIONS)
        remember(self._queues, row.target, BookedQueue(queued + base, view.now_s), MAX_TARGETS)

    def finished(self, view: View, row: Row, outcome: Outcome) -> None:
        (base,) = self._bases_ms(view, [row])
        passed_s = outcome.duration_ms / 1e3
        now_s = view.now_s + passed_s
        left = max(0.0, self._queued_ms(row, now_s) - base * _decay(passed_s))
        remember(self._queues, row.target, BookedQueue(left, now_s), MAX_TARGETS)
        queued = self._chosen_at_ms.pop((view.number, row.target), None)
        if outcome.ok and queued is not None:
            residual = max(1.0, outcome.duration_ms - base - self.alpha * queued)
            bias = self._biases.get(row.target, Bias()).updated(residual, self.forgetting)
            remember(self._biases, row.target, bias, MAX_TARGETS)

    def _bases_ms(self, view: View, rows: Sequence[Row]) -> list[float]:
        whole, per_token = whole_tokens(view), self.uncached_ms_per_1k_tokens / 1e3
        return [max(1.0, per_token * (whole - held)) for held in match_tokens(rows)]

    def _queued_ms(self, row: Row, now_s: float) -> float:
        queue = self._queues.get(row.target)
        return 0.0 if queue is None else queue.left_ms(now_s)


def _decay(passed_s: float) -> float:
    return float(DECAY ** (max(0.0, passed_s) / DECAY_S))
