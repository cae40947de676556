"""Parts of an instance's learned state, as values for another router: see `saved_instance.py`.

This module is separate from the modules that learn, so that those can be compiled: msgspec types cannot be
compiled.
"""

from __future__ import annotations

import msgspec


class SavedFit(msgspec.Struct, frozen=True, array_like=True):
    """Coefficients as a value; see `RecursiveLeastSquares.save`."""

    theta: list[float]
    p: list[list[float]]
    samples: int
    age_s: float | None  # since the last sample; None: no samples
    before: list[float] | None = None  # coefficients before the engine became slower


class SavedAccuracy(msgspec.Struct, frozen=True, array_like=True):
    """Accuracy as a value, without counters; see `OverlapAccuracy.save`."""

    trusted: bool
    recent: tuple[bool, ...] = ()
    missed_in_row: int = 0
