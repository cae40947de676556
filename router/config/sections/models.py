"""The section `models`: names that clients use for models, and what each of them stands for.

An alias is resolved once per request, so what it names are models that engines serve, never another alias. One with
the name of a served model takes its place: the model gets defaults and caps, say, and clients keep their settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from router.config.sections.base import Positive, Seconds, Section, find_choice_fault
from router.config.sections.experiment import (
    MAX_ARMS,
    ArmConfig,
    ArmLimitsConfig,
    ExperimentConfig,
    GuardConfig,
    check_sum,
)

MAX_ALIASES = 1000


class DefaultParameters(Section):
    """Fields of a request's body. Endpoints that have no such field do not get it."""

    temperature: float | None = Field(default=None, ge=0)
    """randomness of sampling; 0: always the likeliest token"""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """share of the probability mass that is sampled from"""
    top_k: int | None = Field(default=None, ge=-1)
    """number of likeliest tokens that are sampled from; 0 or -1: all"""
    min_p: float | None = Field(default=None, ge=0, le=1)
    """least probability of a token, as a share of the likeliest one's"""
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    """penalty on tokens that the answer has already"""
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    """penalty on tokens by how often the answer has them"""
    repetition_penalty: float | None = Field(default=None, gt=0)
    """penalty on tokens of the prompt and the answer; above 1 it discourages them"""
    max_tokens: Positive | None = None
    """longest answer in tokens; also `max_output_tokens` of /v1/responses"""
    min_tokens: int | None = Field(default=None, ge=0)
    """shortest answer in tokens"""
    seed: int | None = None
    """seed of sampling"""
    stop: str | list[str] | None = None
    """texts that end the answer; also `stop_sequences` of /v1/messages"""
    reasoning_effort: str | None = None
    """how much a reasoning model thinks, as its chat template understands it"""
    chat_template_kwargs: dict[str, Any] | None = None
    """variables of the chat template, such as enable_thinking"""

    @property
    def fields(self) -> dict[str, Any]:
        """The parameters that are given, by name."""
        return self.model_dump(exclude_none=True)


class ParameterCaps(Section):
    """Limits on what a request may ask for."""

    max_tokens: Positive | None = None
    """longest answer in tokens: a request for more, or without a limit, gets this; null: no cap"""


class SplitArmConfig(Section):
    """One of the models that share an alias's requests."""

    model: str
    """model or adapter that answers, by the name under which engines serve it"""
    share: float = Field(gt=0)
    """of the units, in percent"""
    revision: str | None = None
    """only instances of this `revision` answer; null: all that serve the model"""


class SplitExperimentConfig(Section):
    """The comparison of a split's arms, and when one is stopped: as in `experiment`."""

    unit: Literal["session", "program", "api_key", "user", "request"] = "session"
    """what stays with one model"""
    seed: int = 0
    """seed of the assignment; equal seeds give equal assignments on every replica"""
    guard: GuardConfig = GuardConfig()
    limits: ArmLimitsConfig = ArmLimitsConfig()
    observe_s: Seconds = 120.0
    """time from a unit's first request during which its requests count, seconds"""


class AliasConfig(Section):
    """A name that clients use, and the models that it stands for."""

    to: str | None = None
    """model or adapter that answers, by the name under which engines serve it; null: those of `split`"""
    split: dict[str, SplitArmConfig] = Field(default={}, max_length=MAX_ARMS)
    """models, or revisions of one, that share the requests, by names for reports; the first is the one that others
    are compared with
    """
    experiment: SplitExperimentConfig = SplitExperimentConfig()
    """how the arms of `split` are compared"""
    fallbacks: list[str] = Field(default=[], max_length=MAX_ARMS)
    """models that answer instead, in this order, where no instance can: none is ready, all breakers are open, or
    all are saturated
    """
    saturated_waiting: Positive = 16
    """requests in an engine's queue from which it counts as saturated; matters only with `fallbacks`"""
    defaults: DefaultParameters = DefaultParameters()
    """fields that are set where the client gives none, or null"""
    caps: ParameterCaps = ParameterCaps()
    """limits on the client's fields"""

    @model_validator(mode="after")
    def _check_defaults(self) -> AliasConfig:
        least, most = self.defaults.max_tokens, self.caps.max_tokens
        if least is not None and most is not None and least > most:
            raise ValueError(f"defaults.max_tokens: found {least}, wanted at most the {most} of caps.max_tokens")
        return self

    @model_validator(mode="after")
    def _check_split(self) -> AliasConfig:
        given = {"to": self.to is not None, "split": bool(self.split)}
        if (fault := find_choice_fault("the alias", given)) is not None:
            raise ValueError(fault)
        if self.split:
            check_sum("split", {name: arm.share for name, arm in self.split.items()})
        elif self.experiment != SplitExperimentConfig():
            raise ValueError("experiment: found no split to compare: give one, or remove the experiment")
        return self

    @model_validator(mode="after")
    def _check_fallbacks(self) -> AliasConfig:
        before = [] if self.to is None else [self.to]
        for i, model in enumerate(self.fallbacks):
            if model in before:
                raise ValueError(f"fallbacks.{i}: found {model}, which is named before: remove it")
            before.append(model)
        return self

    @property
    def models(self) -> tuple[str, ...]:
        """Every model that it may send requests to, the first one first and fallbacks last."""
        arms = [arm.model for arm in self.split.values()]
        return tuple(dict.fromkeys([*(arms if self.to is None else [self.to]), *self.fallbacks]))

    @property
    def split_experiment(self) -> ExperimentConfig:
        """The split as an experiment; its arms have names and shares. Only where there is a split."""
        settings = {name: getattr(self.experiment, name) for name in SplitExperimentConfig.model_fields}
        return ExperimentConfig(arms={name: ArmConfig(share=arm.share) for name, arm in self.split.items()}, **settings)


def find_chains(aliases: Mapping[str, AliasConfig]) -> Iterator[str]:
    """Yield a complaint for each model of an alias that is another alias, and does not have that name for a model
    of its own.
    """
    for alias, config in aliases.items():
        for model in config.models:
            other = aliases.get(model)
            if other is not None and model != alias and model not in other.models:
                yield (
                    f"models.{alias}: {model} is an alias itself, of {', '.join(other.models)}: name a model that "
                    "engines serve"
                )
