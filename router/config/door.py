"""The `door` section: whether new sessions wait until the fleet's caches have room for them."""

from __future__ import annotations

from pydantic import Field

from router.config.section import Section, Seconds


class Door(Section):
    """Fit and park: a session begins when all that is live fits the KV memory of the fleet."""

    admission: bool = Field(default=False, description="hold new sessions while the live ones fill the fleet's caches")
    max_wait_s: Seconds = Field(default=300.0, description="longest wait at the door; after it: 429 with Retry-After")
