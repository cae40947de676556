"""A trouble's file: what goes wrong in a simulated fleet, and when. All of it is optional, one thing at least must be.

Times are seconds of the simulation. What comes of it is `Trouble` in `router/testbed/simulator/scenario.py`;
`router/testbed/sweep/faults.py` makes the one of the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from pydantic import Field, model_validator

from router.config.sections.base import Section


class FaultWindow(Section):
    from_s: float = Field(default=0.0, ge=0, description="when it begins, in seconds of the simulation")
    until_s: float | None = Field(default=None, gt=0, description="when it is over; none: it lasts to the end")

    @model_validator(mode="after")
    def _forward(self) -> FaultWindow:
        if self.until_s is not None and self.until_s <= self.from_s:
            raise ValueError(f"until_s: {self.until_s:g} s is not after from_s, {self.from_s:g} s")
        return self


class InstanceFault(FaultWindow):
    instance: int = Field(ge=0, description="which one; the first has number 0")


class DownFault(InstanceFault):
    """A process that is gone, with its cache and all that it had begun."""


class SlowFault(InstanceFault):
    """Something that no router is told of: a GPU that throttles, a neighbour."""

    factor: float = Field(default=2.0, gt=1, description="how many times as long each of its steps takes")


class TroubleFile(Section):
    """What goes wrong; it may be several things."""

    down: list[DownFault] = Field(default=[], description="instances that die, and come back empty")
    slow: list[SlowFault] = Field(default=[], description="instances that are slower than the others")
    events_lost: float = Field(
        default=0.0, ge=0, le=1, description="share of KV event batches that never arrive; gaps are seen and replayed"
    )
    pool_away: list[FaultWindow] = Field(
        default=[], description="times at which nobody can look into the shared pool or load from it"
    )
    router_starts_s: float = Field(
        default=0.0,
        ge=0,
        description="until then requests are placed in turns; then the router begins, knowing nothing",
    )

    @model_validator(mode="after")
    def _sane(self) -> TroubleFile:
        if not (self.down or self.slow or self.events_lost or self.pool_away or self.router_starts_s):
            raise ValueError(f"nothing goes wrong: give at least one of {', '.join(TroubleFile.model_fields)}")
        hits: list[InstanceFault] = [*self.down, *self.slow]
        for number in sorted({hit.instance for hit in hits}):
            _demand_apart(f"instance {number}", [hit for hit in hits if hit.instance == number])
        _demand_apart("the pool", self.pool_away)
        return self


def _demand_apart(what: str, spans: Iterable[FaultWindow]) -> None:
    """What is over at one end would end the other, too."""
    for before, after in pairwise(sorted(spans, key=lambda span: span.from_s)):
        if before.until_s is None or after.from_s <= before.until_s:
            until = "to the end" if before.until_s is None else f"until {before.until_s:g} s"
            raise ValueError(
                f"{what} has trouble from {before.from_s:g} s {until} and again from {after.from_s:g} s: "
                "let one end (until_s) before the next begins (from_s)"
            )
