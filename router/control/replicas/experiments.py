"""An experiment over several routers: each unit is counted at one of them, and all counts are summed at each.

    request    its unit belongs to the router with the highest hash of both names, among those that hear each other; if
               that is another one, it is told when the request began, was answered and ended
    counts     each router sends its own about once a second; the guard, limits and reports of every router see the sum

A unit (a session, a user, a window of time) may send its requests to several routers; counted at each it would be taken
for several observations of what was drawn once. Requests of the unit `request` are counted where they are. When a
router comes or goes, units change hands: those that are open then may count at two routers. Counts of one that is gone
stay in the sums; requests that it was told of and had not counted are lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import count
from typing import Protocol

from router.clock import Clock
from router.config.sections.experiment import ExperimentConfig
from router.control.replicas.policies import SharedPolicies
from router.control.replicas.policy_messages import CountsShared, UnitRequestBegan
from router.control.workers.experiment import ReportedRequests, describe_end
from router.control.workers.messages import Message, RequestAnswered, RequestEnded
from router.scheduling.experiments.experiment import RunningExperiment
from router.scheduling.policy.record import Record
from router.scheduling.scheduler import Scheduler
from router.tasks import Tasks

MEMBERS_S = 0.25  # between looks at which routers hear each other
COUNTS_S = 1.0


class ReplicaPeers(Protocol):
    """The other routers, as far as an experiment needs them."""

    def share(self, message: Message) -> None:
        """Send a message to all others."""

    def send_to(self, run: str, message: Message) -> None:
        """Send a message to one."""

    def heard_runs(self) -> Sequence[str]:
        """Return the runs of those that are heard and acknowledge what they get."""


class SharedExperiments:
    """Splits the experiments of the leader's `scheduler`, as `policies` names them, among the routers. `run` is the id
    of this router's run.
    """

    def __init__(
        self, run: str, scheduler: Scheduler, policies: SharedPolicies, peers: ReplicaPeers, clock: Clock
    ) -> None:
        self._run = run
        self._scheduler = scheduler
        self._policies = policies
        self._peers = peers
        self._clock = clock
        self._others: Sequence[str] = ()  # routers that count, without this one
        self._experiment: RunningExperiment | None = None  # to which all of the following belongs
        self._id: str | None = None
        self._requests = ReportedRequests[str](clock, count(-2, -2))
        self._counts: dict[str, CountsShared] = {}  # of other runs
        self._own: CountsShared | None = None  # as last sent
        scheduler.make_experiment = lambda spec: SplitExperiment(spec, self)
        self._restart()

    def start(self, tasks: Tasks) -> None:
        tasks.supervise("counts of experiments", self._run_counts)

    # requests of this router

    def find_owner(self, unit: bytes) -> str | None:
        """Return the run of the router that counts a unit; None: this one."""
        if not self._others:
            return None
        owner = max((self._run, *self._others), key=lambda run: _rank(unit, run))
        return None if owner == self._run else owner

    def begin(self, owner: str, arm: str, unit: bytes, record: Record) -> None:
        """Tell `owner` of a request that begins."""
        self._follow()
        if self._id is not None:
            age_s = self._clock.now() - record.arrived_s
            self._peers.send_to(owner, UnitRequestBegan(self._id, record.number, arm, unit, age_s))

    def send_to(self, owner: str, message: RequestAnswered | RequestEnded) -> None:
        self._peers.send_to(owner, message)

    # what others say

    def report(self, message: Message) -> None:
        pass  # what workers tell each other of experiments is for the leader alone

    def state(self) -> Iterator[Message]:
        """Yield the counts of all runs, also of those that are gone."""
        self._follow()
        if (own := self._count()) is not None:
            yield own
        yield from self._counts.values()

    def apply(self, message: Message, run: str) -> None:
        match message:
            case UnitRequestBegan():
                self._follow()
                if message.experiment == self._id and isinstance(self._experiment, SplitExperiment):
                    record = self._requests.begin(run, message.number, self._clock.now() - message.age_s)
                    self._experiment.count_request(message.arm, message.unit, record)
            case RequestAnswered() | RequestEnded():
                self._requests.apply(run, message, self._experiment)
            case CountsShared():
                self._follow()
                self._put(message)

    def _put(self, message: CountsShared) -> None:
        experiment, known = self._experiment, self._counts.get(message.by)
        if experiment is None or message.experiment != self._id or message.by == self._run:
            return
        if (known is None or message.number > known.number) and experiment.fits(message.counts):
            self._counts[message.by] = message
            self._sum()

    # time

    async def _run_counts(self) -> None:
        """Follow which routers hear each other, and send this one's counts when they have changed, until cancelled."""
        sent_at = self._clock.now()
        while True:
            await asyncio.sleep(MEMBERS_S)
            self.poll()
            if self._clock.now() - sent_at >= COUNTS_S:
                sent_at = self._clock.now()
                self.share_counts()

    def poll(self) -> None:
        """Follow which routers hear each other."""
        self._follow()
        others = sorted(self._peers.heard_runs())
        gone = set(self._others) - set(others)
        if others != self._others:
            self._others = others
            for run in gone:
                self._requests.drop(run, self._experiment)
            self._sum()

    def share_counts(self) -> None:
        """Send this router's counts if they have changed."""
        self._follow()
        before = self._own
        if (own := self._count()) is not None and own is not before:
            self._peers.share(own)

    def _follow(self) -> None:
        """Begin anew when another experiment runs than before, or the same one was started again elsewhere."""
        running = self._scheduler.experiment
        if running is self._experiment and (running is None or self._policies.experiment_id == self._id):
            return
        if running is not None and running is self._experiment:
            self._restart()
        self._experiment, self._id = self._scheduler.experiment, self._policies.experiment_id
        self._requests = ReportedRequests[str](self._clock, count(-2, -2))
        self._counts.clear()
        self._own = None

    def _restart(self) -> None:
        """Begin the running experiment, if there is one, with empty books."""
        self._scheduler.experiment = None
        self._scheduler.swap(self._scheduler.selector.policy_set)

    def _count(self) -> CountsShared | None:
        """Return this router's counts, the same message while they do not change."""
        if self._experiment is None or self._id is None:
            return None
        counts = self._experiment.counts()
        if self._own is None or counts != self._own.counts:
            self._own = CountsShared(self._id, self._run, 1 if self._own is None else self._own.number + 1, counts)
        return self._own

    def _sum(self) -> None:
        if self._experiment is not None:
            running = (self._counts[run] for run in self._others if run in self._counts)
            self._experiment.set_others(*([each.counts for each in some] for some in (self._counts.values(), running)))


class SplitExperiment(RunningExperiment):
    """A leader's experiment beside those of other routers: requests of units that another one counts are passed on."""

    def __init__(self, spec: ExperimentConfig, shared: SharedExperiments) -> None:
        super().__init__(spec)
        self._shared = shared
        self._whole = spec.unit != "request"
        self._passed: dict[int, str] = {}  # requests in progress and who counts them, by record number

    def begin_request(self, arm: str, unit: bytes, record: Record) -> None:
        owner = self._shared.find_owner(unit) if self._whole else None
        if owner is None:
            super().begin_request(arm, unit, record)
        else:
            self._passed[record.number] = owner
            self._shared.begin(owner, arm, unit, record)

    def count_request(self, arm: str, unit: bytes, record: Record) -> None:
        """Add a request that another router passed on."""
        super().begin_request(arm, unit, record)

    def first_byte(self, record: Record) -> None:
        if (owner := self._passed.get(record.number)) is not None and record.ttft_ms is not None:
            self._shared.send_to(owner, RequestAnswered(record.number, record.ttft_ms))

    def end_request(self, record: Record) -> None:
        if (owner := self._passed.pop(record.number, None)) is None:
            super().end_request(record)
        else:
            self._shared.send_to(owner, describe_end(record))


def _rank(unit: bytes, run: str) -> bytes:
    return blake2b(unit, digest_size=8, key=run.encode()[:64], person=b"warmroute unit").digest()
