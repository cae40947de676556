"""Simulated traffic for a trial: sessions that are alike within, on a fleet whose load drifts and that has bad moments.

A session has 1 to 12 requests and an effect of its own on all of them; the load is a slow wave plus shocks that fade
(congestion remembers). All of it lies in log time to first byte. Only the planted behaviour depends on the arm.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import exp, sin
from operator import itemgetter
from random import Random
from typing import NamedTuple

from router.config.sections.experiment import ExperimentConfig
from router.scheduling.experiments.experiment import RunningExperiment
from router.scheduling.experiments.results import Finding
from router.scheduling.policy.policy import fallback_policy
from router.scheduling.policy.record import Attempt, Record, Stages
from tests.suites.views import a_row, a_view

VIEW = a_view(a_row("a"), a_row("b"))
STAGES = Stages()


class Behaviour(NamedTuple):
    """Of an arm."""

    slower: float = 1.0  # every time to first byte, times
    tail: float = 0.0  # share of requests that take 5 times as long
    fails: float = 0.02  # share of requests
    hit: float = 0.9


SOUND = Behaviour()


def an_attempt(target: int = 0, end: str = "ok") -> Attempt:
    decision = fallback_policy().decide(VIEW)._replace(chosen=target)
    return Attempt(decision, None, None, end=end)


ATTEMPTS = [[an_attempt(0)], [an_attempt(1)]]


def a_record(number: int, arrived_s: float) -> Record:
    return Record(f"r-{number}", number, arrived_s, 0.0, "/v1/completions", "m", True, "local", None, STAGES)


def finish(
    record: Record,
    ttft_ms: float | None = 100.0,
    duration_ms: float = 1000.0,
    status: int | None = 200,
    end: str = "ok",
    tokens: tuple[int, int] | None = None,
) -> Record:
    """The record of a request that is over; `tokens`: of its prompt, and cached ones."""
    record.ttft_ms, record.duration_ms, record.status = ttft_ms, duration_ms, status
    record.attempts = [an_attempt(end=end)] if end != "ok" else ATTEMPTS[0]
    if tokens is not None:
        record.prompt_tokens, record.cached_tokens = tokens
    record.done = True
    return record


class Event(NamedTuple):
    at_s: float
    arm: str
    unit: bytes
    record: Record
    ends: bool
    ttft_ms: float
    status: int
    cached: int


def traffic(shares: dict[str, float], planted: dict[str, Behaviour], units: int, seed: int) -> list[Event]:
    """What happens, in the order of time."""
    dice = Random(seed)
    names, weights = list(shares), list(shares.values())
    events: list[Event] = []
    at_s, congestion, phase, number = 0.0, 0.0, 6.28 * dice.random(), 0
    for i in range(units):
        at_s += dice.expovariate(2.0)
        congestion = 0.95 * congestion + (1.5 if dice.random() < 0.01 else 0.0)
        level = 5.5 + 0.5 * sin(at_s / 30 + phase) + congestion + dice.gauss(0, 0.5)
        arm = dice.choices(names, weights)[0]
        behaviour = planted.get(arm, SOUND)
        unit = i.to_bytes(8)
        asked_s = at_s
        for _ in range(min(12, 1 + int(dice.expovariate(0.45)))):
            ttft_ms = exp(level + dice.gauss(0, 0.4)) * behaviour.slower
            if dice.random() < behaviour.tail:
                ttft_ms *= 5
            status = 500 if dice.random() < behaviour.fails else 200
            record = a_record(number, asked_s)
            cached = round(1000 * min(1.0, behaviour.hit * dice.uniform(0.8, 1.1)))
            number += 1
            events.append(Event(asked_s, arm, unit, record, False, ttft_ms, status, cached))
            events.append(Event(asked_s + ttft_ms / 1e3 + 0.5, arm, unit, record, True, ttft_ms, status, cached))
            asked_s += dice.expovariate(0.5)
    events.sort(key=itemgetter(0))
    return events


def drive(experiment: RunningExperiment, events: Sequence[Event], after_s: float = 100.0) -> Iterator[Finding]:
    """Tells the trial, looking all the time; and once more `after_s` the last event."""
    now_s = 0.0
    for now_s, arm, unit, record, ends, ttft_ms, status, cached in events:
        if not ends:
            experiment.begin_request(arm, unit, record)
            continue
        record.attempts = ATTEMPTS[record.number % 2]
        record.ttft_ms, record.duration_ms, record.status = ttft_ms, ttft_ms + 500.0, status
        record.prompt_tokens, record.cached_tokens = 1000, cached
        experiment.end_request(record)
        yield from experiment.poll(now_s)
    while experiment.open_units:
        now_s += after_s
        yield from experiment.poll(now_s)


def an_experiment(arms: dict[str, float] | None = None, **keys: object) -> ExperimentConfig:
    return ExperimentConfig.model_validate({"arms": arms or {"a": 90, "b": 10}, "observe_s": 20, **keys})
