"""Occupancy of the fleet: the share of instances that are prefilling, and the share of KV memory in use."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, fsum

from router.fleet.instance import Instance

AVERAGING_S = 20.0  # averaging time of `busy`; results of `warm` do not change between 10 and 20 s
INTERVAL_S = 0.05  # between samples: a finer interval does not change a 20 s average


class Occupancy:
    """The occupancy, sampled when requests arrive."""

    def __init__(self) -> None:
        self.busy: float | None = None  # share of instances with prefill pending, over about 20 s, to 4 digits
        self.live_share: float | None = None  # of the targets' KV memory, mean; sampled with `busy`, to 4 digits
        self._busy = 0.0  # `busy` before rounding
        self._sampled_at = 0.0

    def is_due(self, now: float) -> bool:
        """Return whether the last sample is old enough to take another."""
        return self.busy is None or now - self._sampled_at >= INTERVAL_S

    def sample(self, instances: Sequence[Instance], now: float) -> None:
        """Add a sample of the instances that get requests."""
        if not instances:
            return
        share = sum([instance.prefilling for instance in instances]) / len(instances)
        old = share if self.busy is None else self._busy
        self._busy = share + (old - share) * exp((self._sampled_at - now) / AVERAGING_S)
        self.busy = round(self._busy, 4)
        self._sampled_at = now
        targets = [target for instance in instances for target in instance.targets.values()]
        shares = [live for target in targets if (live := target.live_share) is not None]
        self.live_share = round(fsum(shares) / len(shares), 4) if shares else None
