"""Parts of what was learned of an instance, as values that go to another router: see `saved_instance.py`.

They are apart from what learns them, so that this can be compiled: what msgspec reads and writes cannot.
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
