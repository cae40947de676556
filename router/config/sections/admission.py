"""The `admission` section: whether new sessions wait until the caches of the fleet have room for them."""

from __future__ import annotations

from pydantic import Field

from router.config.sections.base import Seconds, Section


class AdmissionConfig(Section):
    """Admission control by KV memory: a session begins when its context and those of all live sessions fit the fleet.

    A turn of a live session whose context was evicted waits for room too, ahead of new sessions.
    """

    enabled: bool = Field(
        default=False, description="queue new sessions while the live ones fill the KV caches of the fleet"
    )
    max_wait_s: Seconds = Field(
        default=300.0, description="longest wait in the queue, seconds; after it: 429 with Retry-After"
    )
    idle_s: Seconds = Field(
        default=300.0,
        description="silence after which a session no longer counts as live, seconds; until then it counts with the "
        "probability, learned from other sessions, that it returns",
    )
