"""Records of the requests that other processes answer and this one counts, as far as an experiment reads them.

Begins and first bytes are sent as they happen, because bets and limits depend on waiting times and on the order of
units. The open requests of a process that ended count as if their clients had left: the arm is not to blame.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from router.clock import Clock
from router.control.peers.experiment_messages import UnitRequestAnswered, UnitRequestBegan, UnitRequestEnded
from router.fleet.load import LoadBook
from router.scheduling.policy.decision import Decision
from router.scheduling.policy.record import Attempt, AttemptEnd, Record, Stages
from scorers.contract import Row, Speed, View

NO_STAGES = Stages()
NO_SPEED = Speed(0.0, 0.0, 0.0, 0, None, None, None, None)
NO_LOAD = LoadBook().load(NO_SPEED, 0.0)
NO_VIEW = View(0, 0, "", None, None, None, None, None, None, None, ())


class PassedRequests:
    """Open requests of one experiment, by the run that answers them and their numbers at that run. Their records
    have numbers below 0, which no requests of this process have.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._numbers = count(-1, -1)
        self._open: dict[str, dict[int, Record]] = {}

    def begin(self, run: str, message: UnitRequestBegan) -> Record:
        """Return the record of a request that has begun."""
        arrived_s = self._clock.now() - message.age_s
        record = Record("", next(self._numbers), arrived_s, 0.0, "", "", False, "", None, NO_STAGES)
        record.attempts = []
        self._open.setdefault(run, {})[message.number] = record
        return record

    def answer(self, run: str, message: UnitRequestAnswered) -> None:
        """Note when the first byte came; ignored for a request that is not open."""
        if (record := self._open.get(run, {}).get(message.number)) is not None:
            record.ttft_ms = message.ttft_ms

    def end(self, run: str, message: UnitRequestEnded) -> Record | None:
        """Return the complete record of a request; None when it is not open."""
        if (record := self._open.get(run, {}).pop(message.number, None)) is None:
            return None
        record.status, record.ttft_ms, record.duration_ms = message.status, message.ttft_ms, message.duration_ms
        record.prompt_tokens, record.cached_tokens = message.prompt_tokens, message.cached_tokens
        record.output_tokens, record.uncontinued = message.output_tokens, message.uncontinued
        if message.target is not None and message.end is not None:
            record.attempts.append(_create_attempt(message.target, message.end))
        record.done = True
        return record

    def drop(self, run: str) -> Iterator[Record]:
        """Yield the complete records of the open requests of a process that is gone."""
        for record in self._open.pop(run, {}).values():
            record.duration_ms = (self._clock.now() - record.arrived_s) * 1e3
            record.attempts.append(_create_attempt("", "client_gone"))
            record.done = True
            yield record


def describe_end(experiment: str, record: Record) -> UnitRequestEnded:
    """Return the outcome of a request as a message."""
    return UnitRequestEnded(
        experiment,
        record.number,
        record.attempts[-1].end if record.attempts else None,
        record.target,
        record.status,
        record.ttft_ms,
        record.duration_ms,
        record.prompt_tokens,
        record.cached_tokens,
        record.output_tokens,
        record.uncontinued,
    )


def _create_attempt(target: str, end: AttemptEnd) -> Attempt:
    """Return an attempt of which only the target and the end are known."""
    row = Row(target, "", 0, None, None, None, NO_LOAD, NO_SPEED)
    return Attempt(Decision("", NO_VIEW, (row,), (), (0.0,), 0, ()), None, None, end=end)
