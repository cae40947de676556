"""Requests of an experiment that followers answer, counted by the leader's experiment as if they were its own.

    follower    SyncedExperiment    takes the place of the running experiment and passes everything to the leader
    leader      FollowerRequests    keeps a record per request, as far as an experiment reads it, until it has ended

Begins and first bytes are sent as they happen, because bets and limits depend on waiting times and on the order of
units. The open requests of a worker that died count as if their clients had left: the arm is not to blame.
"""

from __future__ import annotations

from router.clock import Clock
from router.config.sections.experiment import ExperimentConfig
from router.control.workers.messages import Broadcast, RequestAnswered, RequestBegan, RequestEnded
from router.fleet.load import LoadBook
from router.scheduling.experiments.experiment import RunningExperiment
from router.scheduling.policy.decision import Decision
from router.scheduling.policy.record import Attempt, AttemptEnd, Record, Stages
from scorers.contract import Row, Speed, View

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
        self._broadcast.send(
            RequestEnded(
                record.number,
                record.attempts[-1].end if record.attempts else None,
                record.target,
                record.status,
                record.ttft_ms,
                record.duration_ms,
                record.prompt_tokens,
                record.cached_tokens,
            )
        )


class FollowerRequests:
    """Requests in progress in followers, for the leader's experiment."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._running: dict[int, tuple[int, Record]] = {}  # follower and record, by the request's number

    def begin(self, follower: int, message: RequestBegan, experiment: RunningExperiment) -> None:
        record = Record("", message.number, message.arrived_s, 0.0, "", "", False, "", None, NO_STAGES)
        record.attempts = []
        self._running[message.number] = follower, record
        experiment.begin_request(message.arm, message.unit, record)

    def answer(self, message: RequestAnswered) -> None:
        if (running := self._running.get(message.number)) is not None:
            running[1].ttft_ms = message.ttft_ms

    def end(self, message: RequestEnded, experiment: RunningExperiment | None) -> None:
        if (running := self._running.pop(message.number, None)) is None:
            return
        record = running[1]
        record.status, record.ttft_ms, record.duration_ms = message.status, message.ttft_ms, message.duration_ms
        record.prompt_tokens, record.cached_tokens = message.prompt_tokens, message.cached_tokens
        if message.target is not None and message.end is not None:
            record.attempts.append(_create_attempt(message.target, message.end))
        record.done = True
        if experiment is not None:
            experiment.end_request(record)

    def drop_worker(self, follower: int, experiment: RunningExperiment | None) -> None:
        """End the open requests of a follower that died."""
        for number, (owner, record) in list(self._running.items()):
            if owner == follower:
                waited_ms = (self._clock.now() - record.arrived_s) * 1e3
                end = RequestEnded(number, "client_gone", "", None, record.ttft_ms, waited_ms, None, None)
                self.end(end, experiment)


def _create_attempt(target: str, end: AttemptEnd) -> Attempt:
    """Return an attempt of which only the target and the end are known."""
    row = Row(target, "", 0, None, None, None, NO_LOAD, NO_SPEED)
    return Attempt(Decision("", NO_VIEW, (row,), (), (0.0,), 0, ()), None, None, end=end)
