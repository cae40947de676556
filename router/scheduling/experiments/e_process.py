"""Evidence that one arm's values are higher than another's: the winnings of bets on this claim, one bet per unit.

Only the assignment is random: given the past, a unit of the two arms falls on X with the known probability p, and
otherwise on Y. For a value v in [0, 1] and a centre c fixed before the unit was seen,

    D = (v - c) / p         if the unit fell on X
    D = (c - r v) / (1 - p) if it fell on Y             is expected to be  E[v on X] - r E[v on Y],

whatever the load did, however units depend on each other or on time. Scaled by its lower bound max(c/p,
(r-c)/(1-p)), D is at least -1, so a bet of a share b < 1 of the money on X multiplies it by 1 + b D > 0. If at no
unit X was expected above r times Y, the money is not expected to grow, and it ever reaches 1/alpha times the stake
with a probability of at most alpha (Ville 1939), so it may be read at any time. This is an e-process, with bets as
in Waudby-Smith and Ramdas 2023.

The best bet is unknown, so the stake is divided among several b. The time of a change is unknown too, so a part
1/(n (n+1)) of the stake waits until unit n: an arm that was good for a year and then breaks is detected after about
2 log n nats, not after another year (mixing over starting times: Shin, Ramdas and Rinaldo 2024).

Several routers that count different units bet separately, and the winnings of a bet are multiplied over the
routers: staking on the next unit what all routers have won is the same game, so the product is an e-process as
well. Compared with one router that sees all units, each further router costs the mixing over starting times once
more, about 0.7 nats.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log, prod

from router.scheduling.experiments.counts import EvidenceCounts

BETS = tuple(0.9 / 2**k for k in range(7))
CAP = 1e15  # winnings beyond this are dropped, which is valid, so that later changes show soon


class EProcess:
    """Evidence that X's mean is above `ratio` (at least 1) times Y's. `chance` is X's share of the units of X and
    Y.
    """

    __slots__ = ("_chance", "_factors", "_others", "_ratio", "_squares", "_stakes", "_sum", "peak", "units", "value")

    def __init__(self, chance: float, ratio: float = 1.0) -> None:
        self._chance = chance
        self._ratio = ratio
        self._stakes = [0.0] * len(BETS)
        self._sum = 0.0
        self._squares = 0.0
        self._others: Sequence[EvidenceCounts] = ()
        self._factors: list[float] | None = None  # winnings of each bet at other routers; None: no other routers
        self.units = 0  # without the units of other routers
        self.value = 1.0  # of a stake of 1
        self.peak = 1.0  # the maximum of `value`

    def observe(self, on_x: bool, value: float, centre: float) -> None:
        """Add a unit. `centre`, in (0, 1), must not depend on this unit; one near the mean value loses least."""
        p, r = self._chance, self._ratio
        gain = (value - centre) / p if on_x else (centre - r * value) / (1 - p)
        gain /= max(centre / p, (r - centre) / (1 - p))
        self._sum += gain
        self._squares += gain * gain
        self.units += 1
        n = self.units
        added = 1 / (n * (n + 1) * len(BETS))
        self._stakes = [(stake + added) * (1 + bet * gain) for bet, stake in zip(BETS, self._stakes, strict=True)]
        won = sum(self._stakes)
        if won > CAP:
            self._stakes = [stake * CAP / won for stake in self._stakes]
        self.value = min(won, CAP) + 1 / (n + 1) if self._factors is None else self._multiply(self._factors)
        self.peak = max(self.peak, self.value)

    def counts(self) -> EvidenceCounts:
        """Return the counts of this router, without the units of others."""
        return EvidenceCounts(self._won(), self.units, self._sum, self._squares)

    def set_others(self, others: Sequence[EvidenceCounts]) -> None:
        """Set the counts of other routers, of units that are not counted here."""
        self._others = others
        self._factors = [prod(won) for won in zip(*(each.won for each in others), strict=True)] if others else None
        self.value = self._multiply(self._factors or [1.0] * len(BETS))
        self.peak = max(self.peak, self.value)

    def _won(self) -> list[float]:
        """Return the present value of a stake of 1 on each bet."""
        waiting = 1 / (self.units + 1)
        return [len(BETS) * stake + waiting for stake in self._stakes]

    def _multiply(self, factors: Sequence[float]) -> float:
        return min(sum(won * factor for won, factor in zip(self._won(), factors, strict=True)) / len(BETS), CAP)

    def units_needed(self, bar: float) -> int | None:
        """Estimate how many more units `value` needs to reach `bar` at the present rate; None if unclear. The best
        bet wins about E[D]^2 / (2 E[D^2]) nats per unit (Kelly 1956). A mean within one standard error of 0 cannot
        be extrapolated.
        """
        if self.value >= bar:
            return 0
        gains = self._sum + sum(each.gains for each in self._others)
        squares = self._squares + sum(each.squares for each in self._others)
        units = self.units + sum(each.units for each in self._others)
        if gains <= 0 or gains**2 <= squares:
            return None
        per_unit = gains**2 / (2 * squares * units)
        return max(1, round(log(bar / self.value) / per_unit))
