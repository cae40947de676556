"""Learned state of an instance as a value, for another router: its speed, and the trust in its events.

Counters are not part of this state. Times are ages, because the clocks of two machines do not agree. New fields are
appended with a default, because routers that exchange these values may differ by a version.
"""

from __future__ import annotations

import msgspec

from router.fleet.instance import Instance
from router.fleet.saved_parts import SavedAccuracy, SavedFit


class SavedInstance(msgspec.Struct, frozen=True, array_like=True):
    """The fits of one instance, in the order of `LatencyModel.fits`, and the accuracy of its ranks' events."""

    id: str
    fits: list[SavedFit]
    accuracy: dict[int, SavedAccuracy] = {}


def save_instance(instance: Instance, now: float) -> SavedInstance:
    """Return the learned state of `instance` as of `now`."""
    fits = [fit.save(now) for fit in instance.latency_model.fits]
    return SavedInstance(
        instance.id, fits, {rank: target.overlap_accuracy.save() for rank, target in instance.targets.items()}
    )


def restore_instance(instance: Instance, saved: SavedInstance, saved_at: float) -> None:
    """Restore the state of `instance` that another router had learned at `saved_at`, by this router's clock. State
    that was already learned here is retained.
    """
    instance.latency_model.restore(saved.fits, saved_at)
    for rank, accuracy in saved.accuracy.items():
        if (target := instance.targets.get(rank)) is not None:
            target.overlap_accuracy.restore(accuracy)
            target.on_speed_change()
