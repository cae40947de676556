"""The outcome of a simulation: every request as a row of columns, and the figures for comparisons.

A million requests as objects would not fit into memory, so each fact has one `array` entry per request, in the
order in which the requests ended. NaN stands for a time that was never reached.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple


class RequestEnd(IntEnum):
    OK = 0
    SHED = 1  # admission control or every engine's queue refused it
    FAILED = 2  # engines died on it, or none was left


class FleetSize(NamedTuple):
    """The size of a fleet from `since_s` on."""

    since_s: float
    paid: int  # instances that start, serve or are drained
    ready: int


class SimulationOutcome:
    """All requests of one simulation. Times are virtual seconds since its start."""

    def __init__(self, instances: int) -> None:
        self.instances = instances
        self.arrived_s = array("d")  # when the client sent it
        self.waited_s = array("d")  # in the admission queue
        self.ttft_s = array("d")  # from sending to the first token, the admission queue included
        self.duration_s = array("d")  # from sending to the last token
        self.session = array("q")
        self.instance = array("l")  # number of the one that answered; -1: none
        self.prompt_tokens = array("l")
        self.local_tokens = array("l")  # of the prompt, from its GPU's cache
        self.host_tokens = array("l")  # from its host memory
        self.pool_tokens = array("l")  # from the shared pool
        self.output_tokens = array("l")
        self.end = array("b")  # a `RequestEnd`
        self.took_s = 0.0  # virtual seconds from the start to the last end
        self.busy_s = [0.0] * instances  # computing, per instance
        self.prefill_s = [0.0] * instances  # of that, the time that prompts alone would have taken
        self.sizes: list[FleetSize] = []  # of a fleet whose size follows a rule, at each change; empty: it is fixed
        self.preemptions = 0
        self.decisions = 0
        self.deciding_s = 0.0  # of real time, where a stopwatch was given
        self.double_bookings = 0  # requests still booked after the last end: a defect if not 0

    def __len__(self) -> int:
        return len(self.end)


class ServiceLimits(NamedTuple):
    """Limits that a request must meet to count as served well."""

    ttft_s: float = 2.0
    tpot_s: float = 0.1


class SimulationFigures(NamedTuple):
    """Figures over the requests that were sent within a window; None when no request has the value."""

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
    good_share: float | None  # of the requests that were sent: shed and failed ones meet no limit
    waited_p50_s: float | None  # in the admission queue, of requests that had to wait
    waited_p90_s: float | None

    @property
    def hit_share(self) -> float | None:
        """Share of prompt tokens from any cache."""
        if self.local_share is None:
            return None
        return self.local_share + (self.host_share or 0.0) + (self.pool_share or 0.0)


def quantile(ordered: Sequence[float], share: float) -> float | None:
    """Return the first of these sorted values with `share` of them before it; None without values."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


DEFAULT_LIMITS = ServiceLimits()


def compute_figures(
    outcome: SimulationOutcome,
    limits: ServiceLimits = DEFAULT_LIMITS,
    since_s: float = 0.0,
    until_s: float | None = None,
) -> SimulationFigures:
    """Return the figures of the window [since_s, until_s): throughput of the requests that ended in it, latencies
    of those that were sent in it.
    """
    until_s = outcome.took_s if until_s is None else until_s
    window_s = max(1e-9, until_s - since_s)
    sent = [row for row, at_s in enumerate(outcome.arrived_s) if since_s <= at_s < until_s]
    ends = Counter(outcome.end[row] for row in sent)
    ok = [row for row in sent if outcome.end[row] == RequestEnd.OK]
    ended = _find_ended(outcome, since_s, until_s)
    ttfts = sorted(outcome.ttft_s[row] for row in ok)
    tpots = sorted(tpot for row in ok if (tpot := _tpot_s(outcome, row)) is not None)
    waits = sorted(outcome.waited_s[row] for row in ok if outcome.waited_s[row] > 0)
    return SimulationFigures(
        requests=len(ok),
        shed=ends[RequestEnd.SHED],
        failed=ends[RequestEnd.FAILED],
        requests_per_s=len(ended) / window_s,
        input_tokens_per_s=_sum(outcome.prompt_tokens, ended) / window_s,
        output_tokens_per_s=_sum(outcome.output_tokens, ended) / window_s,
        ttft_mean_s=_mean(ttfts),
        ttft_p50_s=quantile(ttfts, 0.5),
        ttft_p90_s=quantile(ttfts, 0.9),
        ttft_p99_s=quantile(ttfts, 0.99),
        tpot_mean_s=_mean(tpots),
        tpot_p90_s=quantile(tpots, 0.9),
        duration_p50_s=quantile(sorted(outcome.duration_s[row] for row in ok), 0.5),
        local_share=_share(outcome, outcome.local_tokens, ok),
        host_share=_share(outcome, outcome.host_tokens, ok),
        pool_share=_share(outcome, outcome.pool_tokens, ok),
        imbalance=_imbalance(outcome, ok),
        good_per_s=sum(is_served_well(outcome, row, limits) for row in ended) / window_s,
        good_share=sum(is_served_well(outcome, row, limits) for row in sent) / len(sent) if sent else None,
        waited_p50_s=quantile(waits, 0.5),
        waited_p90_s=quantile(waits, 0.9),
    )


def _find_ended(outcome: SimulationOutcome, since_s: float, until_s: float) -> list[int]:
    """Return the rows that ended well in the window, its end included."""
    rows = enumerate(zip(outcome.end, outcome.arrived_s, outcome.duration_s, strict=True))
    return [row for row, (end, at_s, took_s) in rows if end == RequestEnd.OK and since_s <= at_s + took_s <= until_s]


def _tpot_s(outcome: SimulationOutcome, row: int) -> float | None:
    more = outcome.output_tokens[row] - 1
    return (outcome.duration_s[row] - outcome.ttft_s[row]) / more if more > 0 else None


def is_served_well(outcome: SimulationOutcome, row: int, limits: ServiceLimits) -> bool:
    """Return whether the request of `row` ended well and met both limits."""
    if outcome.end[row] != RequestEnd.OK or outcome.ttft_s[row] > limits.ttft_s:
        return False
    tpot_s = _tpot_s(outcome, row)
    return tpot_s is None or tpot_s <= limits.tpot_s


def _share(outcome: SimulationOutcome, tokens: Sequence[int], rows: Sequence[int]) -> float | None:
    prompts = _sum(outcome.prompt_tokens, rows)
    return _sum(tokens, rows) / prompts if prompts else None


def _imbalance(outcome: SimulationOutcome, rows: Sequence[int]) -> float | None:
    computed = [0] * outcome.instances
    for row in rows:
        cached = outcome.local_tokens[row] + outcome.host_tokens[row] + outcome.pool_tokens[row]
        computed[outcome.instance[row]] += outcome.prompt_tokens[row] - cached
    mean = sum(computed) / len(computed)
    return max(computed) / mean if mean else None


def _sum(column: Sequence[int], rows: Sequence[int]) -> int:
    return sum(column[row] for row in rows)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
