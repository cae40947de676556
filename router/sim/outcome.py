"""What a simulation comes to: every request's story in columns, and the figures that people compare.

Columns, because a million requests as objects would not fit: one `array` entry per request and fact, in the order in
which the requests ended. NaN stands for a moment that never came.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple


class End(IntEnum):
    OK = 0
    SHED = 1  # the door or every engine's queue refused it
    FAILED = 2  # engines died on it, or none was left


class Outcome:
    """All requests of one simulation. Times are virtual seconds since its start."""

    def __init__(self, instances: int) -> None:
        self.instances = instances
        self.arrived_s = array("d")  # when the client sent it
        self.waited_s = array("d")  # of that at the door
        self.ttft_s = array("d")  # from sending to the first token, the wait at the door included
        self.duration_s = array("d")  # from sending to the last token
        self.session = array("q")
        self.instance = array("l")  # that answered; -1: none
        self.prompt_tokens = array("l")
        self.local_tokens = array("l")  # of the prompt, from its GPU's cache
        self.host_tokens = array("l")  # from its host memory
        self.pool_tokens = array("l")  # from the shared pool
        self.output_tokens = array("l")
        self.end = array("b")  # an `End`
        self.took_s = 0.0  # virtual seconds from the start to the last end
        self.busy_s = [0.0] * instances  # computing, per instance
        self.prefill_s = [0.0] * instances  # of that, what its prompts alone would have taken
        self.preemptions = 0
        self.decisions = 0
        self.deciding_s = 0.0  # of real time, where a stopwatch was given
        self.double_bookings = 0  # what the books still hold when all has ended: a defect, if not 0

    def __len__(self) -> int:
        return len(self.end)


class Limits(NamedTuple):
    """What a request must meet to count as served well."""

    ttft_s: float = 2.0
    tpot_s: float = 0.1


class Figures(NamedTuple):
    """Of the requests that were sent within a window. None: nobody was there to be measured."""

    requests: int  # that ended well
    shed: int
    failed: int
    requests_per_s: float  # that ended well within the window, per second of it
    input_tokens_per_s: float
    output_tokens_per_s: float
    ttft_mean_s: float | None
    ttft_p50_s: float | None
    ttft_p90_s: float | None
    ttft_p99_s: float | None
    tpot_mean_s: float | None  # (duration - TTFT) / (output tokens - 1), of answers of two tokens or more
    tpot_p90_s: float | None
    duration_p50_s: float | None
    local_share: float | None  # of prompt tokens, from the GPU's cache
    host_share: float | None
    pool_share: float | None
    imbalance: float | None  # most computed prompt tokens of an instance over the mean of all; 1: even
    good_per_s: float  # requests per second that met both limits
    waited_p50_s: float | None  # at the door, of those who had to
    waited_p90_s: float | None

    @property
    def hit_share(self) -> float | None:
        if self.local_share is None:
            return None
        return self.local_share + (self.host_share or 0.0) + (self.pool_share or 0.0)


def quantile(ordered: Sequence[float], share: float) -> float | None:
    """Nearest rank, of values in order; None of none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


LIMITS = Limits()


def figures(outcome: Outcome, limits: Limits = LIMITS, since_s: float = 0.0, until_s: float | None = None) -> Figures:
    """Requests are counted where they ended, latencies where they were sent: both within [since_s, until_s)."""
    until_s = outcome.took_s if until_s is None else until_s
    window_s = max(1e-9, until_s - since_s)
    ok = shed = failed = ended = given = made = good = 0
    ttfts: list[float] = []
    tpots: list[float] = []
    durations: list[float] = []
    waits: list[float] = []
    asked = local = host = pool = 0
    computed = [0] * outcome.instances
    for row, (at, end) in enumerate(zip(outcome.arrived_s, outcome.end, strict=True)):
        if end != End.OK:
            if since_s <= at < until_s:
                shed += end == End.SHED
                failed += end == End.FAILED
            continue
        ttft, duration = outcome.ttft_s[row], outcome.duration_s[row]
        prompt, output = outcome.prompt_tokens[row], outcome.output_tokens[row]
        tpot = (duration - ttft) / (output - 1) if output > 1 else None
        if since_s <= at + duration < until_s or at + duration == until_s:
            ended += 1
            given += prompt
            made += output
            good += ttft <= limits.ttft_s and (tpot is None or tpot <= limits.tpot_s)
        if not since_s <= at < until_s:
            continue
        ok += 1
        ttfts.append(ttft)
        durations.append(duration)
        if tpot is not None:
            tpots.append(tpot)
        if outcome.waited_s[row] > 0:
            waits.append(outcome.waited_s[row])
        asked += prompt
        local += outcome.local_tokens[row]
        host += outcome.host_tokens[row]
        pool += outcome.pool_tokens[row]
        cached = outcome.local_tokens[row] + outcome.host_tokens[row] + outcome.pool_tokens[row]
        if outcome.instance[row] >= 0:
            computed[outcome.instance[row]] += prompt - cached
    for values in (ttfts, tpots, durations, waits):
        values.sort()
    mean = sum(computed) / len(computed)
    return Figures(
        requests=ok,
        shed=shed,
        failed=failed,
        requests_per_s=ended / window_s,
        input_tokens_per_s=given / window_s,
        output_tokens_per_s=made / window_s,
        ttft_mean_s=sum(ttfts) / len(ttfts) if ttfts else None,
        ttft_p50_s=quantile(ttfts, 0.5),
        ttft_p90_s=quantile(ttfts, 0.9),
        ttft_p99_s=quantile(ttfts, 0.99),
        tpot_mean_s=sum(tpots) / len(tpots) if tpots else None,
        tpot_p90_s=quantile(tpots, 0.9),
        duration_p50_s=quantile(durations, 0.5),
        local_share=local / asked if asked else None,
        host_share=host / asked if asked else None,
        pool_share=pool / asked if asked else None,
        imbalance=max(computed) / mean if mean else None,
        good_per_s=good / window_s,
        waited_p50_s=quantile(waits, 0.5),
        waited_p90_s=quantile(waits, 0.9),
    )
