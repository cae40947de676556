"""A worker's place among the others: what the wiring must know to build one of several."""

from __future__ import annotations

from typing import NamedTuple

from router.clock import Clock
from router.config.schema import Config
from router.control.workers.follower import Follower
from router.control.workers.leader import Leader
from router.tasks import Tasks


class Seat(NamedTuple):
    """`secret` is what block keys and pseudonyms hang on: the same for all, or they would not mean the same."""

    number: int
    secret: int
    others: Leader | Follower

    @property
    def leader(self) -> Leader | None:
        return self.others if isinstance(self.others, Leader) else None

    @property
    def follower(self) -> Follower | None:
        return self.others if isinstance(self.others, Follower) else None


def leading(config: Config, secret: int, clock: Clock, tasks: Tasks) -> Seat | None:
    """Of the first worker; None: it is the only one."""
    return Seat(0, secret, Leader(config, secret, clock, tasks)) if config.workers > 1 else None
