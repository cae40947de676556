"""The `experiment` section: which policies share the live requests, which only look on, and when to stop by itself.

It stands in the main file, or alone in a file that is handed to the admin API. Whether the policies that it names exist
is known where all policies are (`read.py`, `control.py`).
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from router.config.sections.base import Positive, Seconds, Section

PERCENT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")
SLACK = 1e-6  # by how much shares may miss 100


def _share(given: object) -> object:
    """`20%` and 0.2 are the same."""
    match = PERCENT.fullmatch(given) if isinstance(given, str) else None
    return given if match is None else float(match[1]) / 100


Share = Annotated[float, BeforeValidator(_share, json_schema_input_type=float | str)]
"""A number like 0.2, or text like 20%."""

Unit = Literal["session", "api_key", "user", "request", "time"]
Metric = Literal["ttft_p50", "ttft_p90", "duration_p90", "hit_share", "error_rate"]


class GuardConfig(Section):
    """Watches every arm against the first one."""

    metric: Metric = Field(default="ttft_p90", description="what is compared; a failed request is infinitely slow")
    worse_by: Share = Field(
        default=0.2, ge=0, le=10, description="an arm may be worse than the first one by this much (20% or 0.2)"
    )
    alpha: float = Field(
        default=0.01,
        gt=0,
        lt=0.5,
        description="chance of a false alarm, over all arms, metrics and looks of the experiment together",
    )
    min_units: Positive = Field(default=50, description="an arm with fewer finished units is not judged yet")
    action: Literal["rollback", "report"] = Field(
        default="rollback",
        description="rollback: the arm's requests go to the first arm from then on; report: only say so",
    )


class ArmLimitsConfig(Section):
    """Absolute, for every arm: a bad arm harms the others too, through the queues they share."""

    ttft_p90_max_ms: float | None = Field(
        default=None, gt=0, description="an arm of which more than 10 % of requests wait longer is rolled back"
    )
    error_rate_max: Share | None = Field(
        default=None, gt=0, lt=1, description="an arm of which a larger share fails is rolled back (5% or 0.05)"
    )


class ExperimentConfig(Section):
    """Arms on live requests, policies that look on, and what ends it."""

    unit: Unit = Field(
        default="session", description="what stays on one arm; time: all requests of a window (switchback)"
    )
    seed: int = Field(default=0, description="seed of the assignment: equal seeds give equal arms on every replica")
    arms: dict[str, float] = Field(
        min_length=1, description="policies and their shares in percent; the first one is what others are held against"
    )
    shadows: list[str] = Field(default=[], description="policies that say what they would have done, and do nothing")
    guard: GuardConfig = GuardConfig()
    limits: ArmLimitsConfig = ArmLimitsConfig()
    isolate: Literal["none", "instances"] = Field(
        default="none", description="instances: each arm gets its own slice of the fleet, so their caches do not mix"
    )
    observe_s: Seconds = Field(
        default=120.0, description="a unit counts with its requests of this time, from its first one on"
    )
    window_s: Seconds = Field(default=600.0, description="length of a window, for unit time")

    @model_validator(mode="after")
    def _shares_add_up(self) -> ExperimentConfig:
        for name, share in self.arms.items():
            if not share > 0:
                raise ValueError(f"arms: {name} has a share of {share:g}; every share must be above 0")
        total = sum(self.arms.values())
        if abs(total - 100) > SLACK:
            raise ValueError(f"arms: the shares add up to {total:g}, not 100 (percent)")
        return self

    @model_validator(mode="after")
    def _shadows_are_others(self) -> ExperimentConfig:
        for i, name in enumerate(self.shadows):
            if name in self.arms:
                raise ValueError(f"shadows: {name} is an arm already")
            if name in self.shadows[:i]:
                raise ValueError(f"shadows: {name} is named twice")
        return self

    @model_validator(mode="after")
    def _isolation_is_possible(self) -> ExperimentConfig:
        if self.isolate == "instances" and self.unit == "time":
            raise ValueError("isolate: instances needs another unit than time: a window has the whole fleet")
        return self
