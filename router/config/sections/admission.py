"""The `admission` section: whether new sessions wait until the caches of the fleet have room for them."""

from __future__ import annotations

from router.config.sections.base import Seconds, Section


class AdmissionConfig(Section):
    """Admission control by KV memory: a session begins when its context and those of all live sessions fit the fleet.

    A turn of a live session whose context was evicted waits for room too, ahead of new sessions.
    """

    enabled: bool = False
    """queue new sessions while the live ones fill the KV caches of the fleet"""
    max_wait_s: Seconds = 300.0
    """longest wait in the queue, seconds; after it: 429 with Retry-After"""
    idle_s: Seconds = 300.0
    """silence after which a session no longer counts as live, seconds; until then it counts with the probability,
    learned from other sessions, that it returns"""
