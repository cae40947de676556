"""The `admission` section: whether new sessions wait until the fleet's caches have room for them."""

from __future__ import annotations

from pydantic import Field

from router.config.sections.base import Seconds, Section


class AdmissionConfig(Section):
    """Fit and park: a session begins when its context and those of all live sessions fit the KV memory of the fleet; a
    turn whose context is gone waits for room as well, ahead of new sessions.
    """

    enabled: bool = Field(
        default=False, description="let new sessions wait while the live ones fill the fleet's caches"
    )
    max_wait_s: Seconds = Field(default=300.0, description="longest wait for admission; after it: 429 with Retry-After")
    idle_s: Seconds = Field(
        default=300.0,
        description="a session silent for so long is not live any more; until then it counts with the chance that it "
        "comes back, as others did",
    )
