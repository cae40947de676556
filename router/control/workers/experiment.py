"""Requests of an experiment that other processes answer: the leader's trial counts them as its own.

    follower    ToldTrial    the core tells it of its requests as any trial; it passes that on and counts nothing
    leader      Elsewhere    keeps a record for each, as far as a trial looks at one, until it has ended

Beginnings and first bytes are told as they come: who waits for how long, and in which order units came, is what bets
and limits rest on. What a dying worker had under way counts as if its clients had left: the arm is not to blame.
"""

from __future__ import annotations

from router.clock import Clock
from router.config.sections.experiment import ExperimentConfig
from router.control.workers.broadcast import Broadcast
from router.control.workers.messages import RequestAnswered, RequestBegan, RequestEnded
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
    """`version` is that of the rule by which requests are placed; `first_byte` is told beside what a trial hears."""

    def __init__(self, spec: ExperimentConfig, telling: Broadcast, version: int) -> None:
        super().__init__(spec)
        self._telling = telling
        self.version = version

    def begin_request(self, arm: str, unit: bytes, record: Record) -> None:
        self._telling.tell(RequestBegan(self.version, record.number, arm, unit, record.arrived_s))

    def first_byte(self, record: Record) -> None:
        if record.ttft_ms is not None:
            self._telling.tell(RequestAnswered(record.number, record.ttft_ms))

    def end_request(self, record: Record) -> None:
        self._telling.tell(
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
    """Of requests under way in followers; `began` only for those that the present trial is about."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._running: dict[int, tuple[int, Record]] = {}  # follower and record, by the request's number

    def began(self, follower: int, told: RequestBegan, trial: RunningExperiment) -> None:
        record = Record("", told.number, told.arrived_s, 0.0, "", "", False, "", None, NO_STAGES)
        record.attempts = []
        self._running[told.number] = follower, record
        trial.begin_request(told.arm, told.unit, record)

    def answered(self, told: RequestAnswered) -> None:
        if (running := self._running.get(told.number)) is not None:
            running[1].ttft_ms = told.ttft_ms

    def ended(self, told: RequestEnded, trial: RunningExperiment | None) -> None:
        if (running := self._running.pop(told.number, None)) is None:
            return
        record = running[1]
        record.status, record.ttft_ms, record.duration_ms = told.status, told.ttft_ms, told.duration_ms
        record.prompt_tokens, record.cached_tokens = told.prompt_tokens, told.cached_tokens
        if told.target is not None and told.end is not None:
            record.attempts.append(_attempt(told.target, told.end))
        record.done = True
        if trial is not None:
            trial.end_request(record)

    def lost(self, follower: int, trial: RunningExperiment | None) -> None:
        """It died."""
        for number, (of, record) in list(self._running.items()):
            if of == follower:
                waited_ms = (self._clock.now() - record.arrived_s) * 1e3
                end = RequestEnded(number, "client_gone", "", None, record.ttft_ms, waited_ms, None, None)
                self.ended(end, trial)


def _attempt(target: str, end: AttemptEnd) -> Attempt:
    """A choice of which nothing is known but where it fell."""
    row = Row(target, "", 0, None, None, None, NO_LOAD, NO_SPEED)
    return Attempt(Decision("", NO_VIEW, (row,), (), (0.0,), 0, ()), None, None, end=end)
