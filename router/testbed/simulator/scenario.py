"""What a simulation is of: a fleet, what lies between it and its routers, and what goes wrong. Plain values.

One scenario, one policy, one workload and one seed give one `Outcome`, always the same (`run.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from router.config.sections.admission import AdmissionConfig
from router.testbed.engine_profile import EngineProfile


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """A way that KV comes to an instance: `base_ms`, then so many tokens a second."""

    tokens_per_s: float
    base_ms: float = 5.0


@dataclass(frozen=True, slots=True)
class StoreScenario:
    """The shared pool: room for so many tokens, least recently used first out; each instance has a link of its own."""

    tokens: int
    link: LinkSpeed


@dataclass(frozen=True, slots=True)
class EventLags:
    """How late a router hears of its fleet, in seconds."""

    events_s: float = 0.05  # from a block's storing to the index; inf: none ever comes, as without KV events
    metrics_s: float = 0.25  # between two polls of an instance


@dataclass(frozen=True, slots=True)
class InstanceFailure:
    """What happens to one instance from `at_s` to `until_s`."""

    kind: Literal["down", "slow"]
    instance: int
    at_s: float
    until_s: float = float("inf")
    factor: float = 2.0  # slow: its steps take that much longer, and nobody tells the router


@dataclass(frozen=True, slots=True)
class Trouble:
    failures: tuple[InstanceFailure, ...] = ()
    events_lost: float = 0.0  # share of event batches that never arrive; replays still bring them
    pool_away: tuple[tuple[float, float], ...] = ()  # from, until: nobody can look into the pool or load from it
    router_starts_s: float = 0.0  # until then requests are placed in turns; then the router begins, knowing nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    profile: EngineProfile
    instances: int = 8
    block_tokens: int = 512  # what a cached unit is here: Mooncake's traces name runs of 512 tokens
    store: StoreScenario | None = None
    host: StoreScenario | None = None  # host memory, of each instance its own
    lags: EventLags = EventLags()
    trouble: Trouble = Trouble()
    routers: int = 1  # that share the fleet: each sees only its own share of the requests
    max_queued: int | None = None  # requests that wait in an engine; beyond: refused, and another one is tried
    prefills: int = 0  # of `instances`, how many only prefill; the others decode what those hand over
    decode_profile: EngineProfile | None = None  # of those others; None: the same
    handover: LinkSpeed = LinkSpeed(250_000.0, 10.0)  # from a prefill instance to a decode instance
    admission: AdmissionConfig | None = None  # who may begin; None: everybody, at once

    def role(self, number: int) -> Literal["both", "prefill", "decode"]:
        """Of that instance."""
        if not self.prefills:
            return "both"
        return "prefill" if number < self.prefills else "decode"
