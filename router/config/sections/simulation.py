"""The files of simulations: a profile, speed and size of one instance, and a trouble file, what fails and when.

In a profile a number without a source is an opinion, so each number is written with its own:

    kv_tokens: {value: 307328, source: "..."}

`router/lab/engine_profile.py` defines what the numbers mean together and has the same fields. In a trouble file
every key is optional and at least one is required; times are seconds of the simulation, and `Trouble` in
`router/lab/simulator/scenario.py` applies the faults. `router/lab/sweep/options.py` converts both.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Annotated

from pydantic import Field, model_validator

from router.config.sections.base import SOME_TEXT, Positive, Section

Source = Annotated[
    str, SOME_TEXT, Field(description="where it was published, how it was measured, or what it follows from")
]


class SourcedCount(Section):
    value: Positive
    """the number itself"""
    source: Source


class SourcedCost(Section):
    value: float = Field(ge=0)
    """the number itself; 0: no cost"""
    source: Source


class SourcedSize(Section):
    value: float = Field(gt=0)
    """the number itself"""
    source: Source


class ProfileFile(Section):
    """One instance, all of its GPUs together."""

    about: Annotated[str, SOME_TEXT]
    """which model on which hardware, and what the numbers have in common"""
    kv_tokens: SourcedCount
    """capacity of the KV cache, tokens"""
    kv_bytes_per_token: SourcedSize
    """KV size of one token over all layers and all GPUs of the instance, bytes"""
    tail_tokens: SourcedCount | None = None
    """of a hybrid model: KV memory that its windows and states take wherever a prompt can be re-used up to, in tokens;
    null: the model has full attention only"""
    us_per_token: SourcedCost
    """compute per prompt token without attention, microseconds"""
    ns_per_pair: SourcedCost
    """attention compute per pair of a new token and a token before it, nanoseconds"""
    us_per_decode: SourcedCost
    """compute per output token, microseconds"""
    weights_ms: SourcedCost
    """reading the weights once per step, milliseconds"""
    ns_per_context_token: SourcedCost
    """reading the KV of one context token, nanoseconds per step"""
    step_ms: SourcedCost
    """fixed overhead of a step (kernel launches, scheduling, sampling), milliseconds"""
    batched_tokens: SourcedCount
    """most tokens that one step computes (`max_num_batched_tokens`)"""
    max_seqs: SourcedCount
    """most requests that run at once (`max_num_seqs`)"""


class FaultWindow(Section):
    from_s: float = Field(default=0.0, ge=0)
    """begin of the fault, seconds of the simulation"""
    until_s: float | None = Field(default=None, gt=0)
    """end of the fault, seconds of the simulation; null: it lasts to the end"""

    @model_validator(mode="after")
    def _check_order(self) -> FaultWindow:
        if self.until_s is not None and self.until_s <= self.from_s:
            raise ValueError(f"until_s: found {self.until_s:g} s, wanted a time after from_s, {self.from_s:g} s")
        return self


class InstanceFault(FaultWindow):
    instance: int = Field(ge=0)
    """number of the instance; the first is 0"""


class DownFault(InstanceFault):
    """The process is gone, with its cache and all requests that it had begun."""


class SlowFault(InstanceFault):
    """A slowdown that no router is informed of: a GPU that throttles, a noisy neighbour."""

    factor: float = Field(default=2.0, gt=1)
    """factor on the duration of each step"""


class TroubleFile(Section):
    """The faults of one simulation."""

    down: list[DownFault] = []
    """instances that die, and return with an empty cache"""
    slow: list[SlowFault] = []
    """instances that are slower than the others"""
    events_lost: float = Field(default=0.0, ge=0, le=1)
    """share of KV event batches that never arrive; the gaps are detected and replayed"""
    pool_away: list[FaultWindow] = []
    """times at which the shared pool answers no query and no load"""
    router_starts_s: float = Field(default=0.0, ge=0)
    """time at which the router starts, with an empty index, seconds; until then requests are placed in turn"""

    @model_validator(mode="after")
    def _check_faults(self) -> TroubleFile:
        if not (self.down or self.slow or self.events_lost or self.pool_away or self.router_starts_s):
            raise ValueError(f"no fault is given: give at least one of {', '.join(TroubleFile.model_fields)}")
        faults: list[InstanceFault] = [*self.down, *self.slow]
        for number in sorted({fault.instance for fault in faults}):
            _require_disjoint(f"instance {number}", [fault for fault in faults if fault.instance == number])
        _require_disjoint("the pool", self.pool_away)
        return self


def _require_disjoint(what: str, windows: Iterable[FaultWindow]) -> None:
    """Raise ValueError when two faults of one thing overlap or touch: the end of one would end the other as
    well.
    """
    for before, after in pairwise(sorted(windows, key=lambda window: window.from_s)):
        if before.until_s is None or after.from_s <= before.until_s:
            until = "to the end" if before.until_s is None else f"until {before.until_s:g} s"
            raise ValueError(
                f"{what} has a fault from {before.from_s:g} s {until} and another from {after.from_s:g} s: "
                "let one end (until_s) before the next begins (from_s)"
            )
