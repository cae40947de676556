"""An experiment, or a split of a model, over several processes, each of which counts a part of the units.

    request    its unit belongs to the process with the highest hash of both names, among those that reach each other;
               if that is another process, it receives a message when the request begins, is answered and ends
    counts     each process shares its own about once a second; guard, limits and reports of all see the sum

The requests of one unit (a session, a user, a window of time) may arrive at several processes; counted at each, the
unit would be taken for several observations, though its arm was drawn once. With the unit `request`, requests are
counted where they arrive. When a process comes or goes, units change hands (of n processes, 1/n of them): a unit
that is open then may count at two. Counts of a process that is gone stay in the sums; requests that were sent to it
and not yet counted are lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

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
from router.control.peers.parts import Peers, choose_owner
from router.control.peers.passed_requests import PassedRequests, describe_end
from router.scheduling.experiments.experiment import RunningExperiment
from router.scheduling.policy.record import Record


class PartitionedExperiment(RunningExperiment):
    """This process's part of the experiment. `identify` returns the experiment's name at all processes; it is first
    called when a request begins, or counts are compared.
    """

    def __init__(
        self,
        spec: ExperimentConfig,
        models: Mapping[str, SplitArmConfig] | None,
        identify: Callable[[], str],
        peers: Peers,
        clock: Clock,
    ) -> None:
        super().__init__(spec, models)
        self._identify = identify
        self._peers = peers
        self._clock = clock
        self._whole = spec.unit != "request"
        self._others: Sequence[str] = ()  # processes that count, without this one
        self._owners: dict[int, str] = {}  # of requests in progress that others count, by record number
        self._passed = PassedRequests(clock)
        self._counts: dict[str, CountsShared] = {}  # of other runs
        self._own: CountsShared | None = None  # as last shared

    @cached_property
    def id(self) -> str:
        """The experiment's name at all processes."""
        return self._identify()

    # requests of this process

    def begin_request(self, arm: str, unit: bytes, record: Record) -> None:
        owner = self._find_owner(unit)
        if owner == self._peers.run:
            super().begin_request(arm, unit, record)
        else:
            self._owners[record.number] = owner
            age_s = self._clock.now() - record.arrived_s
            self._peers.send_to(owner, UnitRequestBegan(self.id, record.number, arm, unit, age_s))

    def first_byte(self, record: Record) -> None:
        if (owner := self._owners.get(record.number)) is not None and record.ttft_ms is not None:
            self._peers.send_to(owner, UnitRequestAnswered(self.id, record.number, record.ttft_ms))

    def end_request(self, record: Record) -> None:
        if (owner := self._owners.pop(record.number, None)) is None:
            super().end_request(record)
        else:
            self._peers.send_to(owner, describe_end(self.id, record))

    def _find_owner(self, unit: bytes) -> str:
        """Return the run of the process that counts a unit."""
        if not self._whole or not self._others:
            return self._peers.run
        return choose_owner(unit, (self._peers.run, *self._others), b"warmroute unit")

    # what other processes share

    def apply(self, message: ExperimentMessage, run: str) -> None:
        match message:
            case UnitRequestBegan():
                super().begin_request(message.arm, message.unit, self._passed.begin(run, message))
            case UnitRequestAnswered():
                self._passed.answer(run, message)
            case UnitRequestEnded():
                if (record := self._passed.end(run, message)) is not None:
                    super().end_request(record)
            case CountsShared():
                known = self._counts.get(message.by)
                newer = known is None or message.number > known.number
                if newer and message.by != self._peers.run and self.fits(message.counts):
                    self._counts[message.by] = message
                    self._sum()

    def follow(self, others: Sequence[str]) -> None:
        """Pass requests on to these processes from now on."""
        if others != self._others:
            self._others = others
            self._sum()

    def forget(self, run: str) -> None:
        """End the open requests that were passed on by a process that is gone."""
        for record in self._passed.drop(run):
            super().end_request(record)

    def share(self) -> None:
        """Share the counts of this process if they have changed."""
        before = self._own
        if (own := self._count()) is not before:
            self._peers.share(own)

    def state(self) -> Iterator[CountsShared]:
        """Yield the counts of all runs, also of those that are gone."""
        yield self._count()
        yield from self._counts.values()

    def _count(self) -> CountsShared:
        """Return the counts of this process, the same message while they do not change."""
        counts = self.counts()
        if self._own is None or counts != self._own.counts:
            number = 1 if self._own is None else self._own.number + 1
            self._own = CountsShared(self.id, self._peers.run, number, counts)
        return self._own

    def _sum(self) -> None:
        running = [self._counts[run].counts for run in self._others if run in self._counts]
        self.set_others([each.counts for each in self._counts.values()], running)
