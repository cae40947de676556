"""Preloading: prefixes are loaded into engines ahead of the requests for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import islice
from typing import Any

from fastapi import FastAPI
from prometheus_client.core import Metric

from router.control.api.shapes import OpenShape
from router.control.core import Core
from router.control.feature import Feature
from router.features.preload.book import PreloadBook
from router.features.preload.budget import PreloadBudget
from router.features.preload.copies import HotCopies
from router.features.preload.handoff import HandOff
from router.features.preload.peers import SharedPreloads
from router.features.preload.plan import RecentTraffic
from router.features.preload.preloader import Preloader
from router.features.preload.warmup import WarmUp
from router.request.stages import FeaturePath
from router.telemetry.metrics.family import build_family

PREFIXES_LISTED = 100


class WarmUpShape(OpenShape):
    id: str
    end: str | None


class PreloadedPrefixShape(OpenShape):
    target: str
    reason: str


class PreloadsShape(OpenShape):
    saved_ms: float | None
    warmups: list[WarmUpShape]
    handoffs: list[WarmUpShape]
    prefixes: list[PreloadedPrefixShape]


class PreloadFeature(Feature):
    """Loads prefixes into engines that join (`warmup`; None: they get nothing), hands off prefixes of engines that
    are drained (`handoff`; None: they are drained at once), and copies hot prefixes (`copies`; None: no copies are
    made).
    """

    def __init__(self, core: Core) -> None:
        config, scheduler = core.config.preload, core.scheduler
        traffic = RecentTraffic(core.recent_records, config.prompt_bytes)
        self.traffic, self.path = traffic, FeaturePath(ready=traffic.keep)
        scheduler.view_builder.names_sessions = True  # they are counted by prefix
        self.book = PreloadBook()
        scheduler.on_settled.append(self.book.count)
        scheduler.on_left.append(self.book.forget)
        if core.peers is not None:
            self.shared = (SharedPreloads(self.book, core.peers),)
        budget, fetch = PreloadBudget(config.share), core.upstreams.fetch
        self.preloader = Preloader(budget, self.book, scheduler, core.keyring, core.kv_store, fetch, core.clock)
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
        """Begin or stop the hand-off of an instance's prefixes, and return whether it has begun. A second call with
        `on` stops it, so that the caller drains the instance at once.
        """
        if self.handoff is None:
            return False
        if on and self.handoff.begin(instance):
            return True
        self.handoff.stop(instance)
        return False

    def describe_instance(self, instance: str) -> Mapping[str, bool]:
        """Return whether prefixes are being loaded into an instance, and whether its own are being handed off."""
        return {
            "warming": self.warmup is not None and self.warmup.is_warming(instance),
            "handing_off": self.handoff is not None and self.handoff.is_running(instance),
        }

    def describe(self) -> dict[str, Any]:
        """Return the prefill time that may be taken now, the warm-ups and hand-offs, and what was preloaded by this
        process or another worker with the outcomes, as plain JSON types.
        """
        warmups = {} if self.warmup is None else self.warmup.states
        handoffs = {} if self.handoff is None else self.handoff.states
        return {
            "saved_ms": round(self.preloader.saved_ms, 3),
            "warmups": [{"id": id} | asdict(state) for id, state in warmups.items()],
            "handoffs": [{"id": id} | asdict(state) for id, state in handoffs.items()],
            "loaded_tokens": nest_counts(self.book.loaded_tokens),
            "settled_tokens": nest_counts(self.book.settled_tokens),
            "prefixes": [asdict(prefix) for prefix in islice(reversed(self.book.prefixes), PREFIXES_LISTED)],
        }

    def families(self) -> Iterator[Metric]:
        meaning = (
            "tokens loaded into engines ahead of the requests for them, by reason (join, drain, copy) and source: "
        )
        loaded, settled = self.book.loaded_tokens.items(), self.book.settled_tokens.items()
        yield build_family("preload_tokens_total", f"{meaning}computed, pool", ("reason", "source"), loaded)
        meaning = "of those, tokens that the first request for them hit, or found lost, by outcome"
        yield build_family("preload_settled_tokens_total", meaning, ("reason", "outcome"), settled)
        meaning, ended = "requests that loaded them, by reason and end: loaded, failed", self.book.requests.items()
        yield build_family("preload_requests_total", meaning, ("reason", "end"), ended)

    def add_routes(self, app: FastAPI, read: list[Any], write: list[Any]) -> None:
        @app.get("/admin/preloads", dependencies=read)
        async def preloads() -> PreloadsShape:
            """Return preloaded prefixes, the newest first, with what their first
            requests hit, and the last warm-up and hand-off of each instance that had one.
            """
            return PreloadsShape.model_validate(self.describe())


def nest_counts(counts: Mapping[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    """Return counts by two labels as a dict of dicts."""
    found: dict[str, dict[str, int]] = {}
    for (reason, label), count in counts.items():
        found.setdefault(reason, {})[label] = count
    return found
