"""Requests of an experiment that followers answer, counted by the leader's experiment as if they were its own.

    follower    SyncedExperiment    takes the place of the running experiment and passes everything to the leader
    leader      ReportedRequests    keeps a record per request, as far as an experiment reads it, until it has ended

Begins and first bytes are sent as they happen, because bets and limits depend on waiting times and on the order of
units. The open requests of a worker that died count as if their clients had left: the arm is not to blame.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from router.clock import Clock
from router.config.sections.experiment import ExperimentConfig
from router.control.workers.broadcast import Broadcast
from router.control.workers.messages import RequestAnswered, RequestBegan, RequestEnded
from router.fleet.load import LoadBook
from router.scheduling.experiments.experiment import RunningExperiment
from router.scheduling.policy.decision import Decision
from router.scheduling.policy.record import Attempt, AttemptEnd, Record, Stages
from scorers.contract import Row, Speed, View

Owner = TypeVar("Owner", bound=Hashable)

NO_STAGES = Stages()
NO_SPEED = Speed(0.0, 0.0, 0.0, 0, None, None, None, None)
NO_LOAD = LoadBook().load(NO_SPEED, 0.0)
NO_VIEW = View(0, 0, "", None, None, None, None, None, None, None, ())


class SyncedExperiment(RunningExperiment):
    """A follower's experiment. `version` is that of the policy rule by which requests are placed."""

    def __init__(self, spec: ExperimentConfig, broadcast: Broadcast, version: int) -> None:
        super().__init__(spec)
        self._broadcast = broadcast
        self.version = version

    def begin_request(self, arm: str, unit: bytes, record: Record) -> None:
        self._broadcast.send(RequestBegan(self.version, record.number, arm, unit, record.arrived_s))

    def first_byte(self, record: Record) -> None:
        if record.ttft_ms is not None:
            self._broadcast.send(RequestAnswered(record.number, record.ttft_ms))

    def end_request(self, record: Record) -> None:
        self._broadcast.send(describe_end(record))


class ReportedRequests(Generic[Owner]):
    """Requests in progress elsewhere, by who answers them and by their numbers there. An owner is a follower's number
    or the run id of another replica. Their records get `numbers`, which no other requests of this process have.
    """

    def __init__(self, clock: Clock, numbers: Iterator[int]) -> None:
        self._clock = clock
        self._numbers = numbers
        self._running: dict[Owner, dict[int, Record]] = {}

    def begin(self, owner: Owner, number: int, arrived_s: float) -> Record:
        """Return the record of a request that has begun, for the experiment."""
        record = Record("", next(self._numbers), arrived_s, 0.0, "", "", False, "", None, NO_STAGES)
        record.attempts = []
        self._running.setdefault(owner, {})[number] = record
        return record

    def apply(
        self, owner: Owner, message: RequestAnswered | RequestEnded, experiment: RunningExperiment | None
    ) -> None:
        """Note what became of a request; ignored if its beginning was not reported."""
        if isinstance(message, RequestEnded):
            self._end(owner, message, experiment)
        elif (record := self._running.get(owner, {}).get(message.number)) is not None:
            record.ttft_ms = message.ttft_ms
            if experiment is not None:
                experiment.first_byte(record)

    def _end(self, owner: Owner, message: RequestEnded, experiment: RunningExperiment | None) -> None:
        if (record := self._running.get(owner, {}).pop(message.number, None)) is None:
            return
        record.status, record.ttft_ms, record.duration_ms = message.status, message.ttft_ms, message.duration_ms
        record.prompt_tokens, record.cached_tokens = message.prompt_tokens, message.cached_tokens
        record.uncontinued = message.uncontinued
        if message.target is not None and message.end is not None:
            record.attempts.append(_create_attempt(message.target, message.end))
        record.done = True
        if experiment is not None:
            experiment.end_request(record)

    def drop(self, owner: Owner, experiment: RunningExperiment | None) -> None:
        """End the open requests of one that is gone."""
        for number, record in list(self._running.get(owner, {}).items()):
            waited_ms = (self._clock.now() - record.arrived_s) * 1e3
            end = RequestEnded(number, "client_gone", "", None, record.ttft_ms, waited_ms, None, None)
            self._end(owner, end, experiment)
        self._running.pop(owner, None)


def describe_end(record: Record) -> RequestEnded:
    """Return the outcome of a request as a message."""
    return RequestEnded(
        record.number,
        record.attempts[-1].end if record.attempts else None,
        record.target,
        record.status,
        record.ttft_ms,
        record.duration_ms,
        record.prompt_tokens,
        record.cached_tokens,
        record.uncontinued,
    )


def _create_attempt(target: str, end: AttemptEnd) -> Attempt:
    """Return an attempt of which only the target and the end are known."""
    row = Row(target, "", 0, None, None, None, NO_LOAD, NO_SPEED)
    return Attempt(Decision("", NO_VIEW, (row,), (), (0.0,), 0, ()), None, None, end=end)
