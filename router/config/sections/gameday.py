"""The file of a game day: a fleet under load, faults with their times, and what must hold at each.

`warmroute gameday` plays it on real processes and sockets (`router/lab/gameday`); times are seconds since the load
began. What a number under `must` means is worked out in `router/lab/gameday/outcome.py`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, model_validator

from router.config.sections.base import SOME_TEXT, Positive, Seconds, Section

FaultKind = Literal[
    "kill", "freeze", "wedge", "slow", "lossy_events", "wrong_events", "full_disk", "dead_pool", "partition",
    "bad_policy", "clock_jump", "kill_worker", "kill_router", "flood", "hang_ups",
]  # fmt: skip


class FaultTraits(NamedTuple):
    """Traits of a kind of fault: its parameters, and whether it lasts."""

    parameters: tuple[str, ...]
    lasts: bool = True
    by_clients: bool = False  # so that it can be played against any router


TRAITS: dict[FaultKind, FaultTraits] = {
    "kill": FaultTraits(("engine",), lasts=False),
    "freeze": FaultTraits(("engine",)),
    "wedge": FaultTraits(("engine",)),
    "slow": FaultTraits(("engine", "factor")),
    "lossy_events": FaultTraits(("share",)),
    "wrong_events": FaultTraits(("engine",)),
    "full_disk": FaultTraits(()),
    "dead_pool": FaultTraits(()),
    "partition": FaultTraits(("engine", "how")),
    "bad_policy": FaultTraits(("policy",)),
    "clock_jump": FaultTraits(("jump_s", "of")),
    "kill_worker": FaultTraits(("router", "worker"), lasts=False),
    "kill_router": FaultTraits(("router",)),
    "flood": FaultTraits(("clients", "tokens"), by_clients=True),
    "hang_ups": FaultTraits(("clients",), by_clients=True),
}


class GamedayFleet(Section):
    engines: Positive = 4
    """number of simulated engines"""
    blocks: Positive = 2048
    """KV cache blocks of each, of 16 tokens"""
    prefill_tokens_per_s: float = Field(default=8000.0, gt=0)
    """prefill speed, prompt tokens per second"""
    decode_ms_per_token: float = Field(default=5.0, ge=0)
    """decode time per output token, milliseconds"""
    pool: bool = False
    """share KV through a simulated Mooncake Store"""
    routers: Positive = 1
    """number of routers; several are replicas, and connections are spread over them"""


class GamedayLoad(Section):
    """Chats in a closed loop: each turn continues from the answer before it."""

    agents: Positive = 8
    """sessions at once"""
    turns: Positive = 6
    """requests of a session"""
    system_tokens: Positive = 400
    """length of the system prompt that all sessions share, tokens"""
    first_tokens: Positive = 800
    """length of a session's first message, tokens"""
    turn_tokens: Positive = 150
    """length of each further message, tokens"""
    answer_tokens: Positive = 16
    """length of each answer, tokens"""
    think_s: Seconds = 0.5
    """pause before a turn, in the mean; evenly spread from nothing to twice as much, seconds"""
    sessions: Positive | None = None
    """different sessions, and different prompts of each of the clients below; then the first come again, so that what
    routers remember of them stops growing; null: all are new"""
    tenants: int = Field(default=0, ge=0)
    """tenants (`tenant-0`, ...) that share the agents, each with an API key; 0: there are no keys"""
    singles: int = Field(default=0, ge=0)
    """clients of `tenant-0` that send small requests without streaming, each after a pause of `think_s`"""
    leavers: int = Field(default=0, ge=0)
    """clients of `tenant-0` that begin chats and close their connections, as at `hang_ups`, all the time"""


class GamedayBounds(Section):
    """Bounds that must hold at a fault; null: none."""

    failed: int | None = Field(default=None, ge=0)
    """most requests of the load that may fail"""
    p99_s: float | None = Field(default=None, gt=0)
    """longest time to first token at the 99th percentile of the load's answers, seconds"""
    longest_s: float | None = Field(default=None, gt=0)
    """longest time that any client waits for its first token or for the next one, seconds"""
    hit_share: float | None = Field(default=None, ge=0, le=1)
    """smallest share of prompt tokens found in caches"""
    notice_s: float | None = Field(default=None, gt=0)
    """longest time until the router's metrics show the fault, seconds"""
    recover_s: float | None = Field(default=None, gt=0)
    """longest time from the fault's end until everything is as before, seconds"""


class GamedayFault(Section):
    fault: FaultKind
    """what happens"""
    at_s: float = Field(ge=0)
    """its begin, seconds since the load began"""
    until_s: float | None = Field(default=None, gt=0)
    """its end; required unless it is over at once"""
    engine: int | None = Field(default=None, ge=0)
    """number of the engine that it happens to, from 0; null: the seed chooses"""
    factor: float = Field(default=4.0, gt=1)
    """`slow`: factor on the duration of each step"""
    share: float = Field(default=0.2, gt=0, le=1)
    """`lossy_events`: share of the KV event messages of all engines that never arrive"""
    how: Literal["stall", "refuse"] = "stall"
    """`partition`: connections stay open and nothing comes through, or they are cut and refused"""
    policy: str | None = None
    """`bad_policy`: the policy that is activated"""
    jump_s: float = 3600.0
    """`clock_jump`: by how much the wall clock jumps, seconds; negative: back"""
    of: Literal["router", "engines"] = "router"
    """`clock_jump`: whose clock jumps"""
    router: int | None = Field(default=None, ge=0)
    """number of the router that it happens to, from 0; null: the seed chooses"""
    worker: int = Field(default=0, ge=0)
    """`kill_worker`: which of the router's workers, 0 is the one that runs longest"""
    clients: Positive = 16
    """`flood`, `hang_ups`: how many clients send at once"""
    tokens: Positive = 4000
    """`flood`: length of the prefix that all its requests share, tokens"""
    must: GamedayBounds = GamedayBounds()

    @model_validator(mode="after")
    def _check_parameters(self) -> GamedayFault:
        traits = TRAITS[self.fault]
        foreign = self.model_fields_set - {"fault", "at_s", "until_s", "must", *traits.parameters}
        if foreign:
            raise ValueError(f"{self.fault} has no {', '.join(sorted(foreign))}")
        if traits.lasts and self.until_s is None:
            raise ValueError(f"{self.fault} lasts: give its end (until_s)")
        if not traits.lasts and self.until_s is not None:
            raise ValueError(f"{self.fault} is over at once: it has no until_s")
        if self.until_s is not None and self.until_s <= self.at_s:
            raise ValueError(f"until_s: {self.until_s:g} s is not after at_s, {self.at_s:g} s")
        if self.fault == "bad_policy" and self.policy is None:
            raise ValueError("bad_policy: give the policy to activate (policy)")
        return self

    @property
    def end_s(self) -> float:
        """Its end, seconds since the load began."""
        return self.at_s if self.until_s is None else self.until_s


class GamedayDraw(Section):
    """Faults that the seed draws: all kinds that this fleet can have, in an order of its own, again and again. The
    first router is never killed, so that one router has the age of the day.
    """

    from_s: float = Field(gt=0)
    """begin of the first, seconds since the load began"""
    every_s: float = Field(default=20.0, gt=0)
    """from the begin of one to the begin of the next, seconds"""
    lasts_s: float = Field(default=8.0, gt=0)
    """longest duration of a fault that lasts, half of it the shortest, seconds"""
    must: GamedayBounds = GamedayBounds()
    """what must hold at each"""

    @model_validator(mode="after")
    def _check_times(self) -> GamedayDraw:
        if self.lasts_s >= self.every_s:
            raise ValueError(f"lasts_s: {self.lasts_s:g} s is not below every_s, {self.every_s:g} s")
        return self


class GamedayEnd(Section):
    """The examination at the end, when the load is over: no router has booked anything and no engine has requests, all
    requests were answered or refused properly, and no router logged a traceback.
    """

    settled_s: float = Field(default=900.0, gt=0)
    """age at which a process of a router is expected to have its size, seconds"""
    memory_growth: float = Field(default=0.05, gt=0)
    """how much more resident memory it may have at its end than at that age, as a share"""
    descriptors: int = Field(default=20, ge=0)
    """how many more open descriptors it may have at its end than at that age"""
    count_s: float = Field(default=15.0, gt=0)
    """duration of one more load, whose requests and tokens clients, routers and engines must count alike, seconds"""


class GamedayFile(Section):
    """One game day."""

    about: Annotated[str, SOME_TEXT]
    """what it is to show"""
    seed: int = 1
    """of the load, of the engines and of what the file leaves open; the same seed plays the same day"""
    policy: str = "warm"
    """policy in force"""
    fleet: GamedayFleet = GamedayFleet()
    load: GamedayLoad = GamedayLoad()
    router: dict[str, Any] = {}
    """sections of the router's configuration that are not to have their defaults"""
    calm_from_s: float = Field(default=5.0, ge=0)
    """from here until the first fault is what the rest is compared with, seconds"""
    ends_s: float = Field(gt=0)
    """end of the load, seconds"""
    must: GamedayBounds = GamedayBounds()
    """what must hold from `calm_from_s` until the first fault"""
    faults: list[GamedayFault] = []
    """in the order of their times; each is judged from its begin until the begin of the next"""
    draw: GamedayDraw | None = None
    """instead of `faults`: draw them by the seed"""
    at_end: GamedayEnd | None = None
    """what must hold after the last answer; null: nothing is examined"""

    @property
    def workers(self) -> int:
        """Processes of each router that answer requests."""
        return int(self.router.get("workers", 1))

    @model_validator(mode="after")
    def _check_times(self) -> GamedayFile:
        if bool(self.faults) == (self.draw is not None):
            raise ValueError("give one of faults and draw")
        if self.draw is not None:
            if not self.calm_from_s < self.draw.from_s < self.ends_s:
                raise ValueError("draw.from_s: must be between calm_from_s and ends_s")
            return self
        for before, after in pairwise(self.faults):
            if after.at_s <= before.end_s:
                raise ValueError(f"faults: {after.fault} begins at {after.at_s:g} s, before {before.fault} is over")
        if self.faults[0].at_s <= self.calm_from_s:
            raise ValueError(f"faults: the first must begin after calm_from_s, {self.calm_from_s:g} s")
        if self.ends_s <= self.faults[-1].end_s:
            raise ValueError(f"ends_s: {self.ends_s:g} s is not after the last fault, {self.faults[-1].end_s:g} s")
        return self

    @model_validator(mode="after")
    def _check_fleet(self) -> GamedayFile:
        for fault in self.faults:
            if fault.engine is not None and fault.engine >= self.fleet.engines:
                raise ValueError(f"faults: {fault.fault}: there is no engine {fault.engine} of {self.fleet.engines}")
            if fault.fault == "dead_pool" and not self.fleet.pool:
                raise ValueError("faults: dead_pool needs `fleet: {pool: true}`")
            if fault.router is not None and fault.router >= self.fleet.routers:
                raise ValueError(f"faults: {fault.fault}: there is no router {fault.router} of {self.fleet.routers}")
            if fault.fault == "kill_worker" and fault.worker >= max(self.workers, 2):
                raise ValueError(f"faults: kill_worker: there is no worker {fault.worker} of {self.workers}")
            if fault.fault == "kill_worker" and self.workers == 1:
                raise ValueError("faults: kill_worker needs `router: {workers: 2}` or more")
            if fault.fault == "clock_jump" and fault.of == "router" and self.workers > 1:
                raise ValueError("faults: only the clock of a router without workers can jump")
        return self
