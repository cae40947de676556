"""The `experiment` section: which policies share the live requests, which run in shadow, and when an arm is
stopped.

It is part of the main file, or alone in a file that is sent to the admin API. Whether the policies that it names
exist is checked where all policies are known (`reader.py`, `router/control/proposals.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from router.config.sections.base import PluginConfig, Positive, Seconds, Section

PERCENT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")
MAX_ARMS = 32  # also of shadows, each of which decides about every request
SUM_TOLERANCE = 1e-6  # how far the sum of the shares may be from 100


def _parse_percent(value: object) -> object:
    """Return 0.2 for the text `20%`, and any other value unchanged."""
    match = PERCENT.fullmatch(value) if isinstance(value, str) else None
    return value if match is None else float(match[1]) / 100


Share = Annotated[float, BeforeValidator(_parse_percent, json_schema_input_type=float | str)]
"""A number such as 0.2, or a text such as 20%."""

Unit = Literal["session", "program", "api_key", "user", "request", "time"]
Metric = Literal["ttft_p50", "ttft_p90", "duration_p90", "hit_share", "error_rate"]


class GuardConfig(Section):
    """Compares every arm with the first one."""

    metric: Metric = "ttft_p90"
    """metric that is compared; a failed request counts as infinitely slow"""
    worse_by: Share = Field(default=0.2, ge=0, le=10)
    """how much worse than the first arm an arm may be (20% or 0.2)"""
    alpha: float = Field(default=0.01, gt=0, lt=0.5)
    """probability of a false alarm, over all arms, metrics and checks of the experiment together"""
    min_units: Positive = 50
    """finished units that an arm needs before it is judged"""
    action: Literal["rollback", "report"] = "rollback"
    """rollback: send the requests of a worse arm to the first arm from then on; report: only log it"""


class ArmLimitsConfig(Section):
    """Absolute limits for every arm: through shared queues, a bad arm slows down the others too."""

    ttft_p90_max_ms: float | None = Field(default=None, gt=0)
    """roll an arm back when more than 10 % of its requests have a longer time to first token, milliseconds; null:
    no limit
    """
    error_rate_max: Share | None = Field(default=None, gt=0, lt=1)
    """roll an arm back when a larger share of its requests fails (5% or 0.05); null: no limit"""


class ArmConfig(Section):
    """An arm with more than its share: written as a number, that share alone."""

    share: float
    """of the units, in percent"""
    policy: str | None = None
    """policy that decides for it; null: the one that is named like the arm"""
    admission: PluginConfig | None = None
    """admission rule of the arm, with its parameters; only with `unit: time`; null: `admission.rule`"""

    @model_serializer(mode="wrap")
    def _write_share_alone(self, write: SerializerFunctionWrapHandler) -> Any:
        return self.share if self.policy is None and self.admission is None else write(self)


def _read_share_alone(value: object) -> object:
    """Return {share: 50} for the number 50, and any other value unchanged."""
    return {"share": value} if isinstance(value, int | float | str) and not isinstance(value, bool) else value


Arm = Annotated[ArmConfig, BeforeValidator(_read_share_alone, json_schema_input_type=float | ArmConfig)]
"""A number such as 50, the share in percent, or a mapping with the policy and the admission rule as well."""


def check_sum(key: str, shares: Mapping[str, float]) -> None:
    """Raise ValueError unless the shares under `key` add up to 100 (percent)."""
    total = sum(shares.values())
    if abs(total - 100) > SUM_TOLERANCE:
        raise ValueError(f"{key}: found shares that add up to {total:g}, wanted 100 (percent)")


class ExperimentConfig(Section):
    """Policies that share the live requests, policies in shadow, and what ends the experiment early."""

    unit: Unit = "session"
    """what is assigned to an arm as a whole; time: all requests of a time window (switchback)"""
    seed: int = 0
    """seed of the assignment; equal seeds give equal assignments on every replica"""
    arms: dict[str, Arm] = Field(default={}, max_length=MAX_ARMS)
    """policies and their shares in percent, which add up to 100; the first is the one others are compared with.
    Instead of a number, `{share, policy, admission}`; without any, the active policy decides beside `shadows`
    """
    shadows: list[str] = Field(default=[], max_length=MAX_ARMS)
    """policies whose choice is computed and recorded for every request, but not executed"""
    guard: GuardConfig = GuardConfig()
    limits: ArmLimitsConfig = ArmLimitsConfig()
    isolate: Literal["none", "instances"] = "none"
    """instances: each arm gets its own part of the fleet, so that caches do not mix; none: all arms use all of
    it
    """
    observe_s: Seconds = 120.0
    """time from a unit's first request during which its requests count, seconds"""
    window_s: Seconds = 600.0
    """length of a window with `unit: time`, seconds"""

    @model_validator(mode="after")
    def _check_shares(self) -> ExperimentConfig:
        for name, arm in self.arms.items():
            if not arm.share > 0:
                raise ValueError(f"arms.{name}: found the share {arm.share:g}, wanted more than 0")
        if self.arms:
            check_sum("arms", self.shares)
        elif not self.shadows:
            raise ValueError("the experiment has neither arms nor shadows: give the policies to compare")
        return self

    @model_validator(mode="after")
    def _check_shadows(self) -> ExperimentConfig:
        for i, name in enumerate(self.shadows):
            if name in self.policies.values():
                raise ValueError(f"shadows.{i}: found {name}, which is an arm already: remove it")
            if name in self.shadows[:i]:
                raise ValueError(f"shadows.{i}: found {name} again: remove one")
        return self

    @model_validator(mode="after")
    def _check_admission(self) -> ExperimentConfig:
        if self.compares_admission and self.unit != "time":
            raise ValueError("arms: admission rules share the memory of one fleet: compare them with unit: time")
        return self

    def with_arms(self, active: str) -> ExperimentConfig:
        """Return the experiment, with the policy that is active as its only arm if it has none. Raises ValueError if
        that policy is a shadow.
        """
        if self.arms:
            return self
        if active in self.shadows:
            raise ValueError(f"found {active}, which is active: remove it")
        return self.model_copy(update={"arms": {active: ArmConfig(share=100)}})

    @property
    def shares(self) -> dict[str, float]:
        """Shares in percent, by arm."""
        return {name: arm.share for name, arm in self.arms.items()}

    @property
    def policies(self) -> dict[str, str]:
        """Names of policies, by arm."""
        return {name: arm.policy or name for name, arm in self.arms.items()}

    @property
    def compares_admission(self) -> bool:
        """Return whether any arm names an admission rule."""
        return any(arm.admission is not None for arm in self.arms.values())

    @model_validator(mode="after")
    def _check_isolation(self) -> ExperimentConfig:
        if self.isolate == "instances" and self.unit == "time":
            raise ValueError("isolate: instances needs another unit than time: a window has the whole fleet")
        return self
