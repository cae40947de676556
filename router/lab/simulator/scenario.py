"""The subject of a simulation as plain values: a fleet, the lags between it and its routers, and its faults.

One scenario, one policy, one workload and one seed always give the same `SimulationOutcome` (`run.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from router.config.schema import SpeedPrior
from router.config.sections.admission import AdmissionConfig
from router.lab.engine_profile import EngineProfile


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """Speed of loading KV to an instance: `base_ms` per load, then `tokens_per_s`."""

    tokens_per_s: float
    base_ms: float = 5.0


@dataclass(frozen=True, slots=True)
class StoreScenario:
    """A shared pool or host memory of `tokens`, least recently used evicted first, with a link per instance."""

    tokens: int
    link: LinkSpeed


@dataclass(frozen=True, slots=True)
class EventLags:
    """Delays in seconds of the events and metrics that a router receives from its fleet."""

    events_s: float = 0.05  # from a stored block to the index; inf: no events, as without KV events
    metrics_s: float = 0.25  # between two polls of an instance


@dataclass(frozen=True, slots=True)
class ReplicaLink:
    """The link between two routers that exchange their bookings and where sessions go."""

    delay_s: float = 0.001
    lost: float = 0.0  # share of frames


@dataclass(frozen=True, slots=True)
class InstanceFailure:
    """A fault of one instance from `at_s` to `until_s`."""

    kind: Literal["down", "slow"]
    instance: int
    at_s: float
    until_s: float = float("inf")
    factor: float = 2.0  # slow: factor on the duration of its steps; the router is not informed


@dataclass(frozen=True, slots=True)
class Trouble:
    """All faults of a simulation."""

    failures: tuple[InstanceFailure, ...] = ()
    events_lost: float = 0.0  # share of event batches that are lost; replays still deliver them
    pool_away: tuple[tuple[float, float], ...] = ()  # (from, until): the pool answers no lookup and no load
    router_starts_s: float = 0.0  # until then requests go round robin; then the router starts with an empty index
    router_restarts_s: float | None = None  # new routers, with an empty index, replace the first ones; None: never


@dataclass(frozen=True, slots=True)
class Presence:
    """An instance that is in the fleet only from `joins_s` until `leaves_s`.

    It joins with empty caches. When it leaves, the routers remove it, and it finishes the requests that it has.
    """

    instance: int
    joins_s: float = 0.0
    leaves_s: float = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    profile: EngineProfile
    profiles: tuple[EngineProfile, ...] = ()  # of instances 0, 1, ..., over and over; empty: all have `profile`
    instances: int = 8
    presences: tuple[Presence, ...] = ()  # of instances that are not in the fleet all the time
    block_tokens: int = 512  # as in Mooncake's traces, which name runs of 512 tokens
    store: StoreScenario | None = None
    host: StoreScenario | None = None  # host memory of each instance
    lags: EventLags = EventLags()
    trouble: Trouble = Trouble()
    routers: int = 1  # routers in front of the fleet; each request comes to one of them by chance
    exchange: ReplicaLink | None = None  # between those; None: they exchange nothing
    sticky: bool = False  # all requests of a session come to the same router
    max_queued: int | None = None  # waiting requests at which an engine refuses more, so that another is tried
    prefills: int = 0  # instances that only prefill; the others only decode
    decode_profile: EngineProfile | None = None  # of the decode instances; None: `profile`
    handover: LinkSpeed = LinkSpeed(250_000.0, 10.0)  # from a prefill instance to a decode instance
    admission: AdmissionConfig | None = None  # admission control; None: off
    speed_prior: SpeedPrior = field(default_factory=SpeedPrior)  # of the routers, until they have measured

    def role(self, number: int) -> Literal["both", "prefill", "decode"]:
        """Return the role of instance `number`."""
        if not self.prefills:
            return "both"
        return "prefill" if number < self.prefills else "decode"

    def profile_of(self, number: int) -> EngineProfile:
        """Return the profile of instance `number`."""
        if self.decode_profile is not None and self.role(number) == "decode":
            return self.decode_profile
        return self.profiles[number % len(self.profiles)] if self.profiles else self.profile

    def is_present(self, number: int, now: float) -> bool:
        """Return whether instance `number` is in the fleet at virtual time `now`."""
        return all(one.joins_s <= now < one.leaves_s for one in self.presences if one.instance == number)
