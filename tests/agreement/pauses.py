"""How long a request's tokens keep it waiting while prompts of others are computed: from an outcome's columns.

An `Outcome` says when each request's first and last token came, and how much of its prompt was computed where. That is
enough to know when each instance computed prompts: a prompt's steps end with its first token. A request that decodes
meanwhile gets one token per such step instead of one per decode step. TBT of a request is taken as the mean of its
longest tenth of intervals between tokens (the way that Mooncake, FAST'25, is understood to count it).

Pure. Prompts that share a step are counted one after the other, each as long as alone.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from operator import itemgetter
from typing import NamedTuple

from router.sim.outcome import End, Outcome
from router.sim.profile import Profile

TAIL = 0.1


class Pause(NamedTuple):
    """A step with a chunk of a prompt, at an instance."""

    end_s: float
    lasts_s: float


def between_tokens_s(outcome: Outcome, profile: Profile, decodes_apart: bool) -> list[float | None]:
    """TBT per row; None: it failed, or has one token. `decodes_apart`: whoever decodes computes no prompts."""
    pauses = {} if decodes_apart else _pauses(outcome, profile)
    return [_tail_s(outcome, row, pauses) for row in range(len(outcome))]


def _pauses(outcome: Outcome, profile: Profile) -> dict[int, list[Pause]]:
    found: dict[int, list[Pause]] = {}
    for row, end in enumerate(outcome.end):
        if end == End.OK:
            first_s = outcome.arrived_s[row] + outcome.ttft_s[row]
            found.setdefault(outcome.instance[row], []).extend(_steps(outcome, row, profile, first_s))
    for pauses in found.values():
        pauses.sort(key=itemgetter(0))
    return found


def _steps(outcome: Outcome, row: int, profile: Profile, first_s: float) -> Iterator[Pause]:
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


def _tail_s(outcome: Outcome, row: int, pauses: dict[int, list[Pause]]) -> float | None:
    count = outcome.output_tokens[row] - 1
    if outcome.end[row] != End.OK or count < 1:
        return None
    arrived_s = outcome.arrived_s[row]
    first_s, last_s = arrived_s + outcome.ttft_s[row], arrived_s + outcome.duration_s[row]
    here = pauses.get(outcome.instance[row], [])
    since = bisect_right(here, first_s, key=itemgetter(0))
    until = bisect_right(here, last_s, key=itemgetter(0))
    met = sorted((pause.lasts_s for pause in here[since:until]), reverse=True)[:count]
    step_s = max(0.0, last_s - first_s - sum(met)) / max(1, count - len(met))
    tail = max(1, math.ceil(TAIL * count))
    longest = met[:tail]
    return (sum(longest) + step_s * (tail - len(longest))) / tail
