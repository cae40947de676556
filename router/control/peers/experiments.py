"""All experiments that processes count together: the experiment of policies, if one runs, and the splits of models.

A split is the same from start to end. An experiment of policies that was started again, even with the same arms, is
a new experiment (`SharedPolicies.experiment_id`), which every process begins with empty books.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar

from router.clock import Clock
from router.config.sections.experiment import ExperimentConfig
from router.config.sections.models import SplitArmConfig
from router.control.peers.experiment_messages import (
    CountsShared,
    ExperimentMessage,
    UnitRequestAnswered,
    UnitRequestBegan,
    UnitRequestEnded,
)
from router.control.peers.partitioned_experiment import PartitionedExperiment
from router.control.peers.parts import Message, Peers
from router.control.peers.policies import SharedPolicies
from router.scheduling.experiments.model_split import ModelSplit
from router.scheduling.scheduler import Scheduler
from router.tasks import Tasks

MEMBERS_S = 0.25  # between checks of which processes reach each other
COUNTS_S = 1.0


class SharedExperiments:
    """Partitions the units of `scheduler`'s experiments, named by `policies`, and of `splits` among processes."""

    messages: ClassVar[Sequence[type[Message]]] = (
        UnitRequestBegan,
        UnitRequestAnswered,
        UnitRequestEnded,
        CountsShared,
    )

    def __init__(
        self, peers: Peers, scheduler: Scheduler, policies: SharedPolicies, splits: Sequence[ModelSplit], clock: Clock
    ) -> None:
        self._peers = peers
        self._scheduler = scheduler
        self._policies = policies
        self._clock = clock
        self._others: Sequence[str] = ()  # processes that count, without this one
        self._splits = [self._partition(split) for split in splits]
        scheduler.make_experiment = lambda spec: self._create(spec, None, self._identify)
        self._restart()

    def start(self, tasks: Tasks) -> None:
        tasks.supervise("counts of experiments", self._run)

    def state(self) -> Iterator[Message]:
        for experiment in self._experiments():
            yield from experiment.state()

    def apply(self, message: ExperimentMessage, run: str) -> None:
        for experiment in self._experiments():
            if experiment.id == message.experiment:
                experiment.apply(message, run)

    def forget(self, run: str) -> None:
        for experiment in self._experiments():
            experiment.forget(run)

    async def _run(self) -> None:
        """Until cancelled, follow which processes reach each other, and share this process's counts when they have
        changed.
        """
        shared_at = self._clock.now()
        while True:
            await asyncio.sleep(MEMBERS_S)
            self.poll()
            if self._clock.now() - shared_at >= COUNTS_S:
                shared_at = self._clock.now()
                self.share_counts()

    def poll(self) -> None:
        """Update which processes reach each other."""
        self._others = [*self._peers.runs()]
        for experiment in self._experiments():
            experiment.follow(self._others)

    def share_counts(self) -> None:
        """Share this process's counts if they have changed."""
        for experiment in self._experiments():
            experiment.share()

    def _experiments(self) -> Iterator[PartitionedExperiment]:
        """Yield the experiment of policies, if one runs, and all splits. The former begins anew if it was started
        again.
        """
        running = self._scheduler.experiment
        if isinstance(running, PartitionedExperiment) and running.id != self._policies.experiment_id:
            self._restart()
            running = self._scheduler.experiment
        if isinstance(running, PartitionedExperiment):
            yield running
        yield from self._splits

    def _restart(self) -> None:
        """Begin the running experiment of policies, if there is one, with empty books."""
        self._scheduler.experiment = None
        self._scheduler.swap(self._scheduler.selector.policy_set)

    def _partition(self, split: ModelSplit) -> PartitionedExperiment:
        """Restart a split with empty books, partitioned among the processes."""
        experiment = self._create(split.spec, split.arms, lambda: split.fingerprint)
        split.restart(experiment)
        return experiment

    def _create(
        self, spec: ExperimentConfig, models: Mapping[str, SplitArmConfig] | None, identify: Callable[[], str]
    ) -> PartitionedExperiment:
        experiment = PartitionedExperiment(spec, models, identify, self._peers, self._clock)
        experiment.follow(self._others)
        return experiment

    def _identify(self) -> str:
        """Return the name of the running experiment of policies."""
        found = self._policies.experiment_id
        assert found is not None, "it is running"
        return found
