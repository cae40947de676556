"""What the names that clients use for models stand for (`models` of the configuration).

An alias is looked up once per request, before its model is resolved. Everything after that, from token ids to load, is
of the model that engines serve; the client's name stays in the record and in the answer. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from router.config.sections.models import AliasConfig
from router.fleet.engine_facts import ModelCard
from router.prompt.api.parameters import AliasParameters


class ModelChoice(NamedTuple):
    """The model that answers a request for an alias."""

    alias: str  # as the client names the model
    first: str  # the alias's first model
    model: str

    @property
    def other(self) -> str | None:
        """The model, where it is not the alias's first one; None where it is."""
        return None if self.model == self.first else self.model


class Alias:
    """One alias, prepared for requests."""

    __slots__ = ("config", "name", "parameters")

    def __init__(self, name: str, config: AliasConfig) -> None:
        self.name = name
        self.config = config
        self.parameters = AliasParameters(config.defaults.fields, config.caps.max_tokens)


class ModelAliases:
    """All aliases."""

    def __init__(self, configs: Mapping[str, AliasConfig]) -> None:
        self._aliases = {name: Alias(name, config) for name, config in configs.items()}

    def find(self, name: str | None) -> Alias | None:
        """Return the alias of that name; None if there is none."""
        return None if name is None else self._aliases.get(name)

    def choose(self, alias: Alias) -> ModelChoice:
        """Return the model that answers a request for `alias` now."""
        first = alias.config.models[0]
        return ModelChoice(alias.name, first, first)

    def add_cards(self, cards: Sequence[ModelCard]) -> list[ModelCard]:
        """Return the model cards with those of the aliases, each in the place of a model of that name. The card of an
        alias has the name of its first model that is served as `root`; one of which none is served has no card.
        """
        served = {card.id: card for card in cards}
        named: dict[str, ModelCard] = dict(served)
        for name, alias in self._aliases.items():
            model = next((served[model] for model in alias.config.models if model in served), None)
            if model is not None:
                named[name] = ModelCard(name, model.id, None, model.max_model_len)
            else:
                named.pop(name, None)  # a name that engines serve is an alias of something else
        return list(named.values())
