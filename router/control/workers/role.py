"""A worker's place among the others: what the wiring must know to build one of several."""

from __future__ import annotations

from typing import NamedTuple

from router.clock import Clock
from router.config.schema import Config
from router.control.workers.follower import FollowerWorker
from router.control.workers.leader import LeaderWorker
from router.tasks import Tasks


class WorkerRole(NamedTuple):
    """`secret` is what block keys and pseudonyms hang on: the same for all, or they would not mean the same."""

    number: int
    secret: int
    others: LeaderWorker | FollowerWorker

    @property
    def leader(self) -> LeaderWorker | None:
        return self.others if isinstance(self.others, LeaderWorker) else None

    @property
    def follower(self) -> FollowerWorker | None:
        return self.others if isinstance(self.others, FollowerWorker) else None


def create_leader_role(config: Config, secret: int, clock: Clock, tasks: Tasks) -> WorkerRole | None:
    """Of the first worker; None: it is the only one."""
    return WorkerRole(0, secret, LeaderWorker(config, secret, clock, tasks)) if config.workers > 1 else None
