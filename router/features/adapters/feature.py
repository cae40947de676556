"""LoRA adapters that the router loads on engines when they are requested."""

from __future__ import annotations

from router.control.core import Core
from router.control.feature import Feature
from router.features.adapters.loading import AdapterLoader
from router.request.stages import FeaturePath


class AdaptersFeature(Feature):
    """The adapters of the config section `adapters`."""

    def __init__(self, core: Core) -> None:
        loader = AdapterLoader(core.config, core.scheduler.fleet, core.upstreams.fetch, core.tasks, core.clock)
        self.path = FeaturePath(named=loader.enter, filter_cards=loader.add_cards)
        if core.peers is not None:
            from router.features.adapters.peers import SharedAdapters

            self.shared = (SharedAdapters(loader, core.peers),)
