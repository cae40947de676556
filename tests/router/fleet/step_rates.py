"""Error rates of the detection of step changes, on synthetic lone prefills.

    python -m tests.router.fleet.step_rates [SERIES] [OUTLIERS]      prints delays and false alarms

Prompts of 30 to 20,000 tokens, cold and warm; times are off by 15 % (one standard deviation), and `OUTLIERS` of them
(0.01) are 3 to 10 times too long.
"""

from __future__ import annotations

import random
import sys
from statistics import mean, quantiles

from router.config.schema import SpeedPrior
from router.fleet.latency_model import LatencyModel
from scorers.contract import Speed

TRUTH = Speed(35.0, 40.0, 6.0, 0, None, None, None, None)
NOISE, LEARNED, CALM, PATIENCE = 0.15, 100, 2000, 60
FACTORS = 1.5, 2.0, 3.0, 5.0, 20.0


class Series:
    """The lone prefills of one engine, and what is learned of them."""

    def __init__(self, seed: int, outliers: float = 0.01) -> None:
        self.model = LatencyModel(SpeedPrior())
        self._dice = random.Random(seed)
        self._outliers = outliers
        self.now = 0.0

    def observe(self, factor: float = 1.0) -> float:
        """Add a prefill of an engine that is `factor` times slower; return the slowdown that is then known."""
        dice = self._dice
        new = int(10 ** dice.uniform(1.5, 4.3))
        context = dice.choice((0, 0, int(10 ** dice.uniform(2, 4.8))))
        ms = factor * TRUTH.prefill_ms(new, context) * max(0.2, dice.gauss(1.0, NOISE))
        if dice.random() < self._outliers:
            ms *= dice.uniform(3, 10)
        self.now += 1.0
        self.model.observe_prefill(new, context, ms, self.now)
        return self.model.slowdown

    def count_steps(self, samples: int) -> int:
        """Return how often another slowdown was found in `samples` prefills of an engine that does not change."""
        known, steps = self.model.slowdown, 0
        for _ in range(samples):
            found = self.observe()
            steps += found > known
            known = found
        return steps

    def find_step(self, factor: float) -> tuple[int | None, float]:
        """Return after how many prefills a step by `factor` was found, None if after none, and the slowdown found."""
        known = self.model.slowdown
        for count in range(1, PATIENCE + 1):
            found = self.observe(factor)
            if found > known:
                return count, found / known
        return None, 1.0


def main() -> None:
    series = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    outliers = float(sys.argv[2]) if len(sys.argv) > 2 else 0.01
    engines = [Series(seed, outliers) for seed in range(series)]
    for engine in engines:
        engine.count_steps(LEARNED)
    steps = sum(engine.count_steps(CALM) for engine in engines)
    print(f"{steps} false steps in {series * CALM} samples, {outliers:.1%} outliers")
    for factor in FACTORS:
        found = []
        for seed in range(series):
            engine = Series(seed, outliers)
            engine.count_steps(LEARNED)
            found.append(engine.find_step(factor))
        delays = [count for count, _ in found if count is not None]
        sizes = [size for count, size in found if count is not None]
        missed = len(found) - len(delays)
        p99 = quantiles(delays, n=100)[98] if len(delays) > 1 else None
        after = f"after {mean(delays):.1f} samples, p99 {p99}, missed {missed}"
        print(f"{factor:4g} times slower: {after}, as {mean(sizes):.2f}")


if __name__ == "__main__":
    main()
