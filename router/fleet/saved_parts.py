"""Parts of what was learned of an instance, as values that go to another router: see `saved_instance.py`.

Apart from what learns them: msgspec reads and writes them, so this module is never compiled, and those are.
"""

from __future__ import annotations

import msgspec


class SavedFit(msgspec.Struct, frozen=True, array_like=True):
    """Coefficients as a value; see `RecursiveLeastSquares.save`."""

    theta: list[float]
    p: list[list[float]]
    samples: int
    age_s: float | None  # since the last sample; None: there was none


class SavedAccuracy(msgspec.Struct, frozen=True, array_like=True):
    """Accuracy as a value, without counters; see `OverlapAccuracy.save`."""

    trusted: bool
    recent: tuple[bool, ...] = ()
    missed_in_row: int = 0
