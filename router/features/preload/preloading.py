"""The parts that load prefixes ahead, together."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, final

from router.features.preload.copies import HotCopies
from router.features.preload.handoff import HandOff
from router.features.preload.preloader import Preloader
from router.features.preload.warmup import WarmUp


@final
class Preloading:
    """Loads prefixes into engines that join (`warmup`; None: they get nothing), from engines that are drained
    (`handoff`; None: they are drained at once), and where many requests have one (`copies`; None: no copies are made).
    """

    def __init__(
        self, preloader: Preloader, warmup: WarmUp | None, handoff: HandOff | None, copies: HotCopies | None
    ) -> None:
        self.preloader = preloader
        self.warmup = warmup
        self.handoff = handoff
        self.copies = copies

    def start(self) -> None:
        """Make copies from now on."""
        if self.copies is not None:
            self.copies.start()

    def on_joined(self, instance: str) -> None:
        """Warm an instance up that has just become ready."""
        if self.warmup is not None:
            self.warmup.begin(instance)

    def on_drain(self, instance: str, on: bool) -> bool:
        """An instance is to be drained, or no longer: begin or stop to hand off what it holds. Return whether the drain
        waits for that.
        """
        if self.handoff is None:
            return False
        if on and self.handoff.begin(instance):
            return True
        self.handoff.stop(instance)
        return False

    def describe_instance(self, instance: str) -> dict[str, bool]:
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
