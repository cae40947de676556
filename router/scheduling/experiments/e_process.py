"""Evidence that one arm's values are higher than another's: money won by betting on it, one bet per unit.

Only the assignment is taken for chance: given everything before, a unit of the two arms falls on X with the known
probability p, else on Y. For a value v in [0, 1] and a centre c fixed before the unit was seen,

    D = (v - c) / p         if the unit fell on X
    D = (c - r v) / (1 - p) if it fell on Y             is expected to be  E[v on X] - r E[v on Y],

whatever the load did, however units depend on each other or on time. Scaled by its lower bound max(c/p, (r-c)/(1-p)),
D is at least -1, so who bets a share b < 1 of his money on X multiplies it by 1 + b D > 0. If at no unit X was expected
above r times Y, the money is not expected to grow, and it ever reaches 1/alpha times the stake with a chance of at most
alpha (Ville 1939): one may look at it at any time. It is an e-process, betting as in Waudby-Smith and Ramdas 2023.

What to bet is not known, so the stake is divided among several b. When things change is not known either: a part
1/(n (n+1)) of the stake waits until unit n, so that an arm that was good for a year and breaks is found out after about
2 log n nats, not after another year (mixing over starting times: Shin, Ramdas and Rinaldo 2024).
"""

from __future__ import annotations

from math import log

BETS = tuple(0.9 / 2**k for k in range(7))
CAP = 1e15  # winnings beyond it are thrown away, which is allowed: so what changes later shows soon


class EProcess:
    """For: X's mean is above `ratio` times Y's. `chance` is X's share of the units of both; `ratio` is at least 1."""

    __slots__ = ("_chance", "_ratio", "_squares", "_stakes", "_sum", "peak", "units", "value")

    def __init__(self, chance: float, ratio: float = 1.0) -> None:
        self._chance = chance
        self._ratio = ratio
        self._stakes = [0.0] * len(BETS)
        self._sum = 0.0
        self._squares = 0.0
        self.units = 0
        self.value = 1.0  # what a stake of 1 has become
        self.peak = 1.0  # the most that it ever was

    def observe(self, on_x: bool, value: float, centre: float) -> None:
        """One more unit. `centre`, in (0, 1), must not depend on this unit; near the values' mean it loses least."""
        p, r = self._chance, self._ratio
        gain = (value - centre) / p if on_x else (centre - r * value) / (1 - p)
        gain /= max(centre / p, (r - centre) / (1 - p))
        self._sum += gain
        self._squares += gain * gain
        self.units += 1
        n = self.units
        joins = 1 / (n * (n + 1) * len(BETS))
        self._stakes = [(stake + joins) * (1 + bet * gain) for bet, stake in zip(BETS, self._stakes, strict=True)]
        won = sum(self._stakes)
        if won > CAP:
            self._stakes = [stake * CAP / won for stake in self._stakes]
        self.value = min(won, CAP) + 1 / (n + 1)
        self.peak = max(self.peak, self.value)

    def units_needed(self, bar: float) -> int | None:
        """About so many more until `value` reaches `bar`, if they go on as they went so far; None: no telling.

        The best bet wins about E[D]^2 / (2 E[D^2]) nats per unit (Kelly 1956). What lies within one standard error of
        nothing cannot be extrapolated.
        """
        if self.value >= bar:
            return 0
        if self._sum <= 0 or self._sum**2 <= self._squares:
            return None
        per_unit = self._sum**2 / (2 * self._squares * self.units)
        return max(1, round(log(bar / self.value) / per_unit))
