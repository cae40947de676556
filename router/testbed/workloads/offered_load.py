"""How fast an open workload must be played so that a fleet is loaded to `rho`: 1 is what it could do without a hit.

The load is what the requests cost a fleet that caches nothing: every prompt is computed, every answer decoded. So rho
hangs on no policy, pool or cache, and means the same per instance in a fleet of any size; what lies between that and
what a fleet really can do is what its caches and its router win. A workload with many hits can be served far above 1.

    requests per step     k = the most that the step's budget of tokens, the slots and the KV memory allow:
                              k (prompt + out) <= batched_tokens,  k out <= max_seqs,  k out (mean context) <= kv_tokens
    requests per second   instances x k / step_s(k prompt, k pairs, k out, k out (mean context))
    rho                   requests per second that come / those

The fullest step is the best one: its fixed part and the reading of the weights are shared by most. All are means over
the requests; bursts and uneven placement come on top.
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from router.testbed.engine_profile import EngineProfile
from router.testbed.workloads import Workload, speed_up

ENOUGH = 20_000
"""Sessions of which the means are taken: a million would take long and say the same."""


class OfferedLoad(NamedTuple):
    """What a workload's requests ask for, in the mean."""

    requests_per_s: float  # as the workload has it, unscaled; 0: nothing says when its requests come (closed loop)
    prompt_tokens: float
    pairs: float  # of attention between the prompt's tokens and those before them
    output_tokens: float
    read_tokens: float  # contexts whose KV its decode steps read, summed over them; / output_tokens: the mean context

    def capacity(self, profile: EngineProfile) -> float:
        """Requests per second that one instance can keep up with."""
        requests = min(
            profile.batched_tokens / (self.prompt_tokens + self.output_tokens),
            profile.max_seqs / self.output_tokens,
            profile.kv_tokens / self.read_tokens,
        )
        prompts, decodes = (round(requests * mean) for mean in (self.prompt_tokens, self.output_tokens))
        return requests / profile.step_s(prompts, requests * self.pairs, decodes, requests * self.read_tokens)


def measure_demand(workload: Workload) -> OfferedLoad:
    """Raises ValueError for a workload without requests."""
    turns = [turn for session in islice(workload.sessions, ENOUGH) for turn in session.turns]
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
    """That come, from the first to the last. 0: a closed loop, whose requests come when others are answered."""
    if workload.is_closed or len(workload.sessions) < 2:
        return 0.0
    took_s = workload.sessions[-1].start_s - workload.sessions[0].start_s
    return (len(workload.sessions) - 1) / took_s if took_s > 0 else 0.0


def set_rate(workload: Workload, per_s: float) -> Workload:
    """Sped up or slowed down, so that so many requests come per second. ValueError as `workload_speed_factor`."""
    if (own := arrival_rate(workload)) <= 0:
        raise ValueError(f"{workload.name}: no rate to change: a closed loop, or requests that all come at once")
    return speed_up(workload, per_s / own)


def speed_factor(asked: OfferedLoad, profile: EngineProfile, instances: int, rho: float) -> float:
    """As `workload_speed_factor`, where the demand is known already."""
    if asked.requests_per_s <= 0:
        raise ValueError("no rate to change: a closed loop, or requests that all come at once")
    return rho * instances * asked.capacity(profile) / asked.requests_per_s


def workload_speed_factor(workload: Workload, profile: EngineProfile, instances: int, rho: float) -> float:
    """The factor by which an open `workload` must be sped up (times divided by it) for the load `rho` on `instances`.

    ValueError for a closed loop, whose requests come when others are answered.
    """
    return speed_factor(measure_demand(workload), profile, instances, rho)
