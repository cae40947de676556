"""The offered load `rho` of an open workload, and its speed for a given rho; 1 is a fleet's capacity without hits.

The load is the requests' cost for a fleet that caches nothing: every prompt is computed, every answer decoded. So
rho depends on no policy, pool or cache, and means the same per instance in a fleet of any size. Any load above 1
that a fleet serves is the gain of its caches and its router: a workload with many hits can be served far above 1.

    requests per step     k = the most that the step's budget of tokens, the slots and the KV memory allow:
                              k (prompt + out) <= batched_tokens,  k out <= max_seqs,  k out (mean context) <= kv_tokens
    requests per second   instances x k / step_s(k prompt, k pairs, k out, k out (mean context))
    rho                   arriving requests per second / those

The fullest step is the best one, because the most requests share its fixed part and the reading of the weights. All
quantities are means over the requests; bursts and uneven placement are not included.
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from router.lab.engine_profile import EngineProfile
from router.lab.workloads.arrivals import speed_up
from router.lab.workloads.model import Workload

ENOUGH = 20_000
"""Number of sessions for the means: a million would take long and give the same result."""


class OfferedLoad(NamedTuple):
    """Mean cost of a workload's requests."""

    requests_per_s: float  # of the unscaled workload; 0: its requests have no times (closed loop)
    prompt_tokens: float
    pairs: float  # attention pairs: a prompt token and a token before it
    output_tokens: float
    read_tokens: float  # contexts read by its decode steps, summed; divided by output_tokens: the mean context

    def capacity(self, profile: EngineProfile) -> float:
        """Return the requests per second that one instance can serve without hits."""
        requests = min(
            profile.batched_tokens / (self.prompt_tokens + self.output_tokens),
            profile.max_seqs / self.output_tokens,
            profile.kv_tokens / self.read_tokens,
        )
        prompts, decodes = (round(requests * mean) for mean in (self.prompt_tokens, self.output_tokens))
        return requests / profile.step_s(prompts, requests * self.pairs, decodes, requests * self.read_tokens)


def measure_demand(workload: Workload) -> OfferedLoad:
    """Return the mean cost of the first `ENOUGH` sessions. Raises ValueError for a workload without requests."""
    turns = [turn for session in islice(workload.all_sessions(), ENOUGH) for turn in session.turns]
    if not turns:
        raise ValueError(f"workload {workload.name}: it has no requests")
    sizes = [(turn.prompt_tokens, turn.output_tokens) for turn in turns]
    return OfferedLoad(
        arrival_rate(workload),
        sum(prompt for prompt, _ in sizes) / len(sizes),
        sum(prompt * prompt / 2 for prompt, _ in sizes) / len(sizes),
        sum(output for _, output in sizes) / len(sizes),
        sum(output * (prompt + output / 2) for prompt, output in sizes) / len(sizes),
    )


def arrival_rate(workload: Workload) -> float:
    """Return requests per second from the first to the last; 0 for a closed loop, whose answers pace it."""
    if workload.is_closed or len(workload.sessions) < 2:
        return 0.0
    took_s = workload.sessions[-1].start_s - workload.sessions[0].start_s
    return (len(workload.sessions) - 1) / took_s if took_s > 0 else 0.0


def set_rate(workload: Workload, per_s: float) -> Workload:
    """Return the workload at `per_s` requests per second. Raises ValueError if the workload has no rate."""
    if (own := arrival_rate(workload)) <= 0:
        raise ValueError(f"{workload.name}: no rate to change: a closed loop, or requests that all come at once")
    return speed_up(workload, per_s / own)


def speed_factor(demand: OfferedLoad, profile: EngineProfile, instances: int, rho: float) -> float:
    """Return the factor by which a workload with this demand must be sped up for the load `rho` on `instances`.

    Raises ValueError when the workload has no rate: a closed loop, or requests that all arrive at once.
    """
    if demand.requests_per_s <= 0:
        raise ValueError("no rate to change: a closed loop, or requests that all come at once")
    return rho * instances * demand.capacity(profile) / demand.requests_per_s


def workload_speed_factor(workload: Workload, profile: EngineProfile, instances: int, rho: float) -> float:
    """Return the `speed_factor` of an open workload. Raises ValueError for a closed loop, whose answers pace it."""
    return speed_factor(measure_demand(workload), profile, instances, rho)
