"""How long a request's tokens keep it waiting while prompts of others are computed: from an outcome's columns.

An `SimulationOutcome` says when each request's first and last token came, and how much of its prompt was computed
where. That is enough to know when each instance computed prompts: a prompt's steps end with its first token. What a
request that decodes meanwhile gets of it is said by `Prompts`. TBT of a request is taken as the mean of its longest
tenth of intervals between tokens (the way that Mooncake, FAST'25, is understood to count it).

Pure. Prompts that share a step are counted one after the other, each as long as alone.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from enum import Enum, auto
from operator import itemgetter
from typing import NamedTuple

from router.lab.engine_profile import EngineProfile
from router.lab.simulator.outcome import RequestEnd, SimulationOutcome

TAIL = 0.1


class Prompts(Enum):
    """Where prompts are computed while others decode."""

    ELSEWHERE = auto()  # whoever decodes computes none
    BESIDE = auto()  # in the same steps: one token per such step
    FIRST = auto()  # in steps of their own, as long as any waits: no token before the last one's, and a decode step


class Pause(NamedTuple):
    """Steps with prompts at an instance: one of them, or all that follow each other."""

    end_s: float
    lasts_s: float


def between_tokens_s(outcome: SimulationOutcome, profile: EngineProfile, prompts: Prompts) -> list[float | None]:
    """TBT per row; None: it failed, or has one token."""
    pauses = {} if prompts is Prompts.ELSEWHERE else _pauses(outcome, profile)
    if prompts is Prompts.FIRST:
        pauses = {instance: _unbroken(found, profile) for instance, found in pauses.items()}
    return [_tail_s(outcome, row, pauses, prompts) for row in range(len(outcome))]


def _pauses(outcome: SimulationOutcome, profile: EngineProfile) -> dict[int, list[Pause]]:
    found: dict[int, list[Pause]] = {}
    for row, end in enumerate(outcome.end):
        if end == RequestEnd.OK:
            first_s = outcome.arrived_s[row] + outcome.ttft_s[row]
            found.setdefault(outcome.instance[row], []).extend(_steps(outcome, row, profile, first_s))
    for pauses in found.values():
        pauses.sort(key=itemgetter(0))
    return found


def _steps(outcome: SimulationOutcome, row: int, profile: EngineProfile, first_s: float) -> Iterator[Pause]:
    """Of its prompt, the last one first."""
    cached = outcome.local_tokens[row] + outcome.host_tokens[row] + outcome.pool_tokens[row]
    end_s, new = first_s, outcome.prompt_tokens[row] - cached
    while new > 0:
        chunk = (new - 1) % profile.batched_tokens + 1
        context = cached + new - chunk
        lasts_s = profile.step_s(chunk, chunk * (context + chunk / 2), 0, context + chunk)
        yield Pause(end_s, lasts_s)
        end_s -= lasts_s
        new -= chunk


def _unbroken(pauses: list[Pause], profile: EngineProfile) -> list[Pause]:
    """With no decode step between them they are one."""
    close_s = profile.step_s(0, 0.0, 1, 0.0) / 2
    runs: list[Pause] = []
    for pause in pauses:
        run = pause
        while runs and run.end_s - run.lasts_s <= runs[-1].end_s + close_s:
            run = Pause(run.end_s, run.lasts_s + runs.pop().lasts_s)
        runs.append(run)
    return runs


def _tail_s(outcome: SimulationOutcome, row: int, pauses: dict[int, list[Pause]], prompts: Prompts) -> float | None:
    count = outcome.output_tokens[row] - 1
    if outcome.end[row] != RequestEnd.OK or count < 1:
        return None
    arrived_s = outcome.arrived_s[row]
    first_s, last_s = arrived_s + outcome.ttft_s[row], arrived_s + outcome.duration_s[row]
    here = pauses.get(outcome.instance[row], [])
    since = bisect_right(here, first_s, key=itemgetter(0))
    until = bisect_right(here, last_s, key=itemgetter(0))
    # What follows its own prompt without a break began before its first token.
    met = sorted((min(pause.lasts_s, pause.end_s - first_s) for pause in here[since:until]), reverse=True)[:count]
    step_s = max(0.0, last_s - first_s - sum(met)) / max(1, count - len(met))
    tail = max(1, math.ceil(TAIL * count))
    longest = met[:tail]
    steps = tail if prompts is Prompts.FIRST else tail - len(longest)
    return (sum(longest) + step_s * steps) / tail
