"""Timeline of a request: its stages in order, each with its start and its duration.

    body  parse  wake  tokens  admission  pool | match  decide  prefill  connect  first_token  stream | match  ...
                                                 one attempt                                             the next one

Records contain durations, the time at which all facts for a choice were ready, and the time of each choice. The
stages before a choice ran one after the other, so their starts follow from their durations. Only the wait for token
ids has no recorded duration, since it may end without ids: it is the time between parsing and admission.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from router.scheduling.policy.decision import Decision
from router.scheduling.policy.record import Attempt, Record
from scorers.expected_ttft import ExpectedTtft

YARDSTICK = ExpectedTtft()
UNTOKENIZED = frozenset({"endpoint", "no_model", "not_needed"})  # values of `tokens_from` if no ids were needed
WITH_IDS = frozenset({"given", "local", "remote"})


def is_blind(tokens_from: str) -> bool:
    """Return whether a prompt was placed without ids although ids could have found it in a cache, given a record's
    `tokens_from`.
    """
    return tokens_from not in WITH_IDS and tokens_from not in UNTOKENIZED


Side = Literal["client", "router", "wait", "engine"]
"""Whose time a stage is: the client sends, the router computes, the request waits for room, an engine or the pool, or
the engine works.
"""
SIDES: dict[str, Side] = {
    "body": "client",
    "wake": "wait",
    "admission": "wait",
    "pool": "wait",
    "prefill": "engine",
    "connect": "engine",
    "first_token": "engine",
    "stream": "engine",
}


def side_of(stage: str) -> Side:
    """Return whose time a stage is."""
    return SIDES.get(stage, "router")


class StageTime(NamedTuple):
    """One stage. Both times are None if the stage did not run or was not measured; only the duration is None while
    the stage runs.
    """

    name: str
    attempt: int | None  # counting from 1; None before the first attempt
    start_ms: float | None  # after the arrival
    duration_ms: float | None


class Promise(NamedTuple):
    """Predictions at the last choice, and the measured values; None: unknown, or not known yet."""

    overlap_tokens: int | None  # predicted by the index, in any tier of the target
    cached_tokens: int | None  # reported by the engine
    predicted_ttft_ms: float | None  # `expected_ttft` of the chosen target; None for a pair
    measured_ttft_ms: float | None  # from the choice to the first byte; None without a stream


def build_timeline(record: Record) -> list[StageTime]:
    """Return the stages of a record, in the order of their starts."""
    times = list(_before_choice(record))
    for number, attempt in enumerate(record.attempts, 1):
        times += _of_attempt(record, number, attempt)
    return times


def compare_promise(record: Record) -> Promise | None:
    """Return the predictions and measurements of the last attempt; None if there was no attempt."""
    if not record.attempts:
        return None
    last = record.attempts[-1]
    predicted_ms = measured_ms = None
    if last.prefill is None:
        predicted_ms = predict_ttft_ms(last.decision)
    if record.stream and record.ttft_ms is not None and last.start_ms is not None:
        measured_ms = record.ttft_ms - last.start_ms
    return Promise(last.predicted_tokens, record.cached_tokens, predicted_ms, measured_ms)


def predict_ttft_ms(decision: Decision) -> float:
    """Return the TTFT that `expected_ttft` predicts for the chosen target, in ms, whichever policy chose it."""
    (predicted_ms,) = YARDSTICK.score(decision.view._replace(rows=(decision.row,)))
    return predicted_ms


def _before_choice(record: Record) -> Iterator[StageTime]:
    stages, body_ms, ready_ms = record.stages, record.body_ms, record.prepared_ms
    yield StageTime("body", None, None if body_ms is None else 0.0, body_ms)
    yield _at("parse", None, body_ms, stages.parse_ms)
    pool_ms = _sum(ready_ms, -(stages.pool_ms or 0.0))
    admission_ms = _sum(pool_ms, -(stages.admission_ms or 0.0))
    wake_ms = _sum(body_ms, stages.parse_ms or 0.0)
    tokens_ms = _sum(wake_ms, stages.wake_ms or 0.0)
    waited_ms = None
    if record.tokens_from not in UNTOKENIZED and admission_ms is not None and tokens_ms is not None:
        waited_ms = max(0.0, admission_ms - tokens_ms)
    yield _at("wake", None, wake_ms, stages.wake_ms)
    yield _at("tokens", None, tokens_ms, waited_ms)
    yield _at("admission", None, admission_ms, stages.admission_ms)
    yield _at("pool", None, pool_ms, stages.pool_ms)


def _of_attempt(record: Record, number: int, attempt: Attempt) -> Iterator[StageTime]:
    """Yield the stages of an attempt. The time waited for an engine that did not answer counts as `first_token`."""
    start_ms, last = attempt.start_ms, number == len(record.attempts)
    yield _at("match", number, start_ms, attempt.match_ms)
    decide_ms = _sum(start_ms, attempt.match_ms or 0.0)
    yield _at("decide", number, decide_ms, attempt.decide_ms)
    sent_ms = _sum(decide_ms, attempt.decide_ms or 0.0)
    earlier = record.attempts[: number - 1]  # an attempt may fetch from the prefill half of an earlier one
    if attempt.prefill is not None and all(other.prefill is not attempt.prefill for other in earlier):
        yield _until("prefill", number, sent_ms, _sum(start_ms, attempt.prefill.duration_ms))
    connect_ms = record.stages.connect_ms if last else None
    yield _at("connect", number, sent_ms, connect_ms)
    waits_ms = _sum(sent_ms, connect_ms or 0.0)
    end_ms = _sum(start_ms, attempt.duration_ms)
    first_ms = record.ttft_ms if last else None
    yield _until("first_token", number, waits_ms, end_ms if first_ms is None else first_ms)
    if first_ms is not None:
        yield _until("stream", number, first_ms, end_ms)


def _at(name: str, attempt: int | None, start_ms: float | None, duration_ms: float | None) -> StageTime:
    """Return a stage; one without a duration did not run."""
    return StageTime(name, attempt, None if duration_ms is None else start_ms, duration_ms)


def _until(name: str, attempt: int, start_ms: float | None, end_ms: float | None) -> StageTime:
    """Return a stage that has started; without an end it is still running."""
    duration_ms = None if start_ms is None or end_ms is None else max(0.0, end_ms - start_ms)
    return StageTime(name, attempt, start_ms, duration_ms)


def _sum(ms: float | None, more_ms: float | None) -> float | None:
    return None if ms is None or more_ms is None else ms + more_ms
