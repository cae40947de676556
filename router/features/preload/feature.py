"""Preloading: prefixes are loaded into engines ahead of the requests for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from router.control.core import Core
from router.control.feature import Feature
from router.features.preload.budget import PreloadBudget
from router.features.preload.copies import HotCopies
from router.features.preload.handoff import HandOff
from router.features.preload.plan import RecentTraffic
from router.features.preload.preloader import Preloader
from router.features.preload.warmup import WarmUp
from router.request.stages import FeaturePath


class PreloadFeature(Feature):
    """Loads prefixes into engines that join (`warmup`; None: they get nothing), from engines that are drained
    (`handoff`; None: they are drained at once), and where many requests have one (`copies`; None: no copies are made).
    """

    def __init__(self, core: Core) -> None:
        config, scheduler = core.config.preload, core.scheduler
        traffic = RecentTraffic(core.recent_records, config.prompt_bytes)
        self.traffic, self.path = traffic, FeaturePath(ready=traffic.keep)
        scheduler.view_builder.names_sessions = True  # they are counted by prefix
        budget = PreloadBudget(config.share)
        fetch, clock = core.upstreams.fetch, core.clock
        self.preloader = Preloader(budget, scheduler, core.keyring, core.kv_store, fetch, clock)
        parts = core, self.preloader, traffic
        self.warmup = WarmUp(*parts) if config.join else None
        self.handoff = HandOff(*parts) if config.drain else None
        self.copies = HotCopies(*parts) if config.copies else None
        if self.warmup is not None:
            core.membership.on_joined.append(self.warmup.begin)

    def take_duties(self) -> None:
        """Make copies from now on."""
        if self.copies is not None:
            self.copies.start()

    def on_drain(self, instance: str, on: bool) -> bool:
        """Begin or stop to hand off what the instance holds; a second call to drain it drains it at once."""
        if self.handoff is None:
            return False
        if on and self.handoff.begin(instance):
            return True
        self.handoff.stop(instance)
        return False

    def describe_instance(self, instance: str) -> Mapping[str, bool]:
        """Return whether prefixes are loaded into an instance, and whether its own are handed off."""
        return {
            "warming": self.warmup is not None and self.warmup.is_warming(instance),
            "handing_off": self.handoff is not None and self.handoff.is_running(instance),
        }

    def describe(self) -> dict[str, Any]:
        """Return the prefill time that may be taken now, and the warm-ups and hand-offs, as plain JSON types."""
        warmups = {} if self.warmup is None else self.warmup.states
        handoffs = {} if self.handoff is None else self.handoff.states
        return {
            "saved_ms": round(self.preloader.saved_ms, 3),
            "warmups": [{"id": id} | asdict(state) for id, state in warmups.items()],
            "handoffs": [{"id": id} | asdict(state) for id, state in handoffs.items()],
        }
