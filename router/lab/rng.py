"""A tiny seeded random number generator, so that a simulated engine answers and fails the same way in every run.

splitmix64 (Steele, Lea, Flood 2014): one multiplication chain per number, no state but 64 bits. Its quality
suffices to pick words and to decide whether a message is lost, but not for secrets.
"""

from __future__ import annotations

MASK = (1 << 64) - 1


class Rng:
    """Random numbers that depend on the seed alone."""

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        self._state = seed & MASK

    def bits(self) -> int:
        """Return 64 uniform bits."""
        self._state = z = (self._state + 0x9E3779B97F4A7C15) & MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def below(self, n: int) -> int:
        """Return a whole number in [0, n)."""
        return self.bits() % n

    def happens(self, probability: float) -> bool:
        """Return True with this probability."""
        return probability > 0 and (self.bits() >> 11) / (1 << 53) < probability
