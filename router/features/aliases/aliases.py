"""Model aliases: the clients' names for models (`models` of the configuration).

An alias is looked up once per request, before its model is resolved. After that, everything from token ids to load
refers to the model that engines serve; the client's name stays in the record and in the answer. The module is pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from router.config.sections.models import AliasConfig
from router.fleet.engine_facts import ModelCard
from router.fleet.fleet import Fleet
from router.fleet.instance import Instance
from router.prompt.api.parameters import AliasParameters
from router.scheduling.availability import Unavailability, find_unavailability
from router.scheduling.experiments.model_split import ModelSplit
from router.scheduling.policy.record import Record


class ModelChoice(NamedTuple):
    """The model that answers a request for an alias."""

    alias: str  # the client's name for the model
    first: str  # the alias's first model
    model: str
    revision: str | None = None  # of the instances that may answer; None: any
    arm: str | None = None  # of the alias's split; None: no split, or the split did not decide
    unit: bytes | None = None  # the unit for which the arm was drawn; None: no draw
    fallback: Unavailability | None = None  # why a fallback answers; None: no fallback does

    @property
    def other(self) -> str | None:
        """The model, if it is not the alias's first one; None if it is."""
        return None if self.model == self.first else self.model


class Alias:
    """One alias, prepared for requests."""

    __slots__ = ("config", "name", "parameters", "split")

    def __init__(self, name: str, config: AliasConfig) -> None:
        self.name = name
        self.config = config
        self.parameters = AliasParameters(config.defaults.fields, config.caps.max_tokens)
        self.split = ModelSplit(name, config) if config.split else None


class ModelAliases:
    """All aliases, for models of `fleet`. `bases` has the base models of adapters that are loaded on request."""

    def __init__(
        self, configs: Mapping[str, AliasConfig], fleet: Fleet, bases: Mapping[str, str] | None = None
    ) -> None:
        self._bases = bases or {}
        self._fleet = fleet
        self._aliases = {name: Alias(name, config) for name, config in configs.items()}

    def find(self, name: str | None) -> Alias | None:
        """Return the alias with the name `name`; None if there is none."""
        return None if name is None else self._aliases.get(name)

    @property
    def splits(self) -> list[ModelSplit]:
        """The splits of all aliases that have one."""
        return [alias.split for alias in self._aliases.values() if alias.split is not None]

    def choose(self, alias: Alias, now: float, unit: bytes | None = None, sender: str | None = None) -> ModelChoice:
        """Return the model that answers a request for `alias` now. `unit` is what stays with one arm of a split."""
        first = alias.config.models[0]
        choice = ModelChoice(alias.name, first, first)
        if alias.split is not None and unit is not None:
            name, drawn = alias.split.assign(unit)
            arm = alias.split.arms[name]
            choice = ModelChoice(alias.name, first, arm.model, arm.revision, name, unit if drawn else None)
        if not alias.config.fallbacks:
            return choice
        most = alias.config.saturated_waiting
        model = self._bases.get(choice.model, choice.model)
        reason = find_unavailability(self._fleet, model, choice.revision, most, now, sender)
        return choice if reason is None else self.fall_back(choice, reason, now, sender) or choice

    def choose_of(self, alias: Alias, maker: Instance) -> ModelChoice | None:
        """Return the model of a request that continues a response which only the instance `maker` has: the alias's
        first arm or model that `maker` serves, without a random draw; None if it serves none.
        """
        first = alias.config.models[0]
        for name, arm in {} if alias.split is None else alias.split.arms.items():
            if arm.model in maker.served and arm.revision in (None, maker.config.revision):
                return ModelChoice(alias.name, first, arm.model, arm.revision, name)
        model = next((model for model in alias.config.models if model in maker.served), None)
        return None if model is None else ModelChoice(alias.name, first, model)

    def fall_back(
        self, choice: ModelChoice, reason: Unavailability, now: float, sender: str | None = None
    ) -> ModelChoice | None:
        """Return the alias's next fallback that can answer, because the model of `choice` cannot, for `reason`;
        None if there is none.
        """
        config = self._aliases[choice.alias].config
        rest = config.fallbacks
        if choice.fallback is not None:
            rest = rest[rest.index(choice.model) + 1 :]
        for model in rest:
            if model == choice.model and choice.revision is None:
                continue
            if find_unavailability(self._fleet, model, None, config.saturated_waiting, now, sender) is None:
                return choice._replace(model=model, revision=None, fallback=reason)
        return None

    def begin(self, choice: ModelChoice, record: Record, now: float) -> None:
        """Count a request in the comparison of its alias's arms."""
        if choice.arm is not None and choice.unit is not None and (split := self._split(choice)) is not None:
            split.begin(choice.arm, choice.unit, record)
            if choice.fallback is not None:
                split.leave(record, now)

    def first_byte(self, choice: ModelChoice, record: Record) -> None:
        """Record that the answer of a request has begun."""
        if choice.unit is not None and (split := self._split(choice)) is not None:
            split.first_byte(record)

    def leave(self, choice: ModelChoice, record: Record, now: float) -> None:
        """Count as failed with `choice` a request that began with it and that another model is going to answer."""
        if choice.unit is not None and (split := self._split(choice)) is not None:
            split.leave(record, now)

    def end(self, choice: ModelChoice, record: Record) -> None:
        """Count the outcome of a request whose record is closed."""
        if choice.unit is not None and (split := self._split(choice)) is not None:
            split.end(record)

    def _split(self, choice: ModelChoice) -> ModelSplit | None:
        return self._aliases[choice.alias].split

    def add_cards(self, cards: Sequence[ModelCard]) -> list[ModelCard]:
        """Return the model cards with those of the aliases; an alias's card replaces that of a model with the same
        name. The card has the name of the alias's first served model as `root`; an alias without one has no card.
        """
        served = {card.id: card for card in cards}
        named: dict[str, ModelCard] = dict(served)
        for name, alias in self._aliases.items():
            model = next((served[model] for model in alias.config.models if model in served), None)
            if model is not None:
                named[name] = ModelCard(name, model.id, None, model.max_model_len)
            else:
                named.pop(name, None)  # engines serve the name, but for clients it is the alias of another model
        return list(named.values())
