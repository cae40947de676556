"""Pseudo-random draws for plug-ins, computed from the view alone.

Nothing here keeps state or is seeded by the process, so replaying a view gives the same draw. A draw belongs to a name
(a target, as a rule) and not to a position, so the order of rows does not matter. `use` keeps the draws of two plug-ins
in one policy independent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from math import log
from struct import unpack

_WORD = (1 << 64) - 1


def draws(seed: int, number: int, names: Iterable[str], use: str = "") -> list[float]:
    """Return a number strictly between 0 and 1 for each name: uniform, and independent of the draws for other
    arguments. `use` has at most 16 bytes. Takes about 0.4 us per name.
    """
    salt = (seed & _WORD).to_bytes(8) + (number & _WORD).to_bytes(8)
    seeded = blake2b(digest_size=8, salt=salt, person=use.encode())  # a copy costs half of a new hash
    digests = []
    for name in names:
        one = seeded.copy()
        one.update(name.encode())
        digests.append(one.digest())
    words = unpack(f">{len(digests)}Q", b"".join(digests))
    # 52 bits plus a half: exact in a float, and never 0 or 1, so that its logarithm is finite
    return [((word >> 12) + 0.5) / 2**52 for word in words]


def perturb(costs: Sequence[float], scale: float, lots: Sequence[float]) -> list[float]:
    """Return each cost's distance from the least, in units of `scale`, perturbed by its draw: a row is the least of all
    with probability exp(-distance), relative to the others (the Gumbel trick).
    """
    least = min(costs)
    return [(cost - least) / scale + log(-log(lot)) for cost, lot in zip(costs, lots, strict=True)]
