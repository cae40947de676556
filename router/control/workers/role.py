"""The role of one worker among several: what the composition root must know to build it."""

from __future__ import annotations

from typing import NamedTuple

from router.clock import Clock
from router.config.schema import Config
from router.control.workers.follower import FollowerWorker
from router.control.workers.leader import LeaderWorker
from router.tasks import Tasks


class WorkerRole(NamedTuple):
    """`secret` seeds block keys and pseudonyms. It is the same for all workers, so that theirs are equal."""

    number: int
    secret: int
    worker: LeaderWorker | FollowerWorker

    @property
    def leader(self) -> LeaderWorker | None:
        return self.worker if isinstance(self.worker, LeaderWorker) else None

    @property
    def follower(self) -> FollowerWorker | None:
        return self.worker if isinstance(self.worker, FollowerWorker) else None


def create_leader_role(config: Config, secret: int, clock: Clock, tasks: Tasks) -> WorkerRole | None:
    """Return the role of the first worker; None when it is the only one."""
    return WorkerRole(0, secret, LeaderWorker(config, secret, clock, tasks)) if config.workers > 1 else None
