"""Clients' names of models: a name stands for one model, for several with a split, or for one with fallbacks."""

from __future__ import annotations

from router.control.core import Core
from router.control.feature import Feature
from router.features.aliases.aliases import ModelAliases
from router.features.aliases.stage import ModelNames
from router.request.stages import FeaturePath


class AliasesFeature(Feature):
    """The names in the config section `models`."""

    def __init__(self, core: Core) -> None:
        config, scheduler = core.config, core.scheduler
        aliases = ModelAliases(config.models, scheduler.fleet, config.adapter_bases)
        names = ModelNames(aliases, scheduler, core.clock, core.run_id)
        core.control.guard_splits(aliases.splits)
        self.resolve_name = names.resolve_prompt
        self.path = FeaturePath(read=names.resolve_name, recovery=names.try_next_model, filter_cards=names.add_cards)
