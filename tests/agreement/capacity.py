"""Mooncake (FAST'25, Figures 1 and 8): effective requests and prefill GPU time on 16 nodes of 8 x A800, conversation.

Published: a request is effective with TTFT <= 30 s and TBT below 100, 200, 300 ms. Mooncake (nodes prefill or decode,
a global KV cache, KVCache-centric scheduling) has 498, 157, 59 % more of them than the baselines. Prefill GPU time of
vLLM with prefix caching is 1.43 times Mooncake's on this trace, 1.40 on tool & agent, 2.59 on the synthetic one: 29 to
61 % saved.

Known: nodes, model (a dummy Llama-3-70B), trace, limits; the paper finds 8 + 8 nodes best. Assumed: the trace's own
pace; TBT is the mean of the longest tenth of a request's intervals (`pauses.py`); the gain is that of the share of
effective requests over the best baseline's.

Mapping: Mooncake as in `placement.py`, global. Baselines on 16 instances that do both, placed by fewest requests:
"prefix caching" computes a prompt in one step (131,072 tokens) and keeps it in HBM alone; "vLLM" the same without
reuse; "chunked prefill" in chunks of 2,048, without reuse, as the two excluded each other in vLLM then. Without reuse:
no two prompts share a text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from router.sim.outcome import End, Outcome
from router.sim.scenario import Scenario
from router.sim.workloads import Arrivals, Span, Workload
from router.simulate import profiles
from tests.agreement import placement
from tests.agreement.pauses import between_tokens_s
from tests.agreement.row import Line, Row, ratio
from tests.agreement.served import outcome_of, part_of_it

TTFT_S, TBT_MS = 30.0, {100: 498, 200: 157, 300: 59}
WHOLE, CHUNK = 131_072, 2048
WHY = "how the trace was paced and TBT counted is not published; see the module"


def alone(batched_tokens: int) -> Scenario:
    profile = replace(profiles.load("llama-3-70b-8xa800"), batched_tokens=batched_tokens)
    return Scenario(profile=profile, instances=placement.NODES)


def strangers(workload: Workload) -> Workload:
    """The same lengths, but no prompt begins like another one."""
    made = Arrivals()
    for number, session in enumerate(workload.sessions):
        (turn,) = session.turns
        made.add(session.start_s, (Span((1 << 50) + number, turn.prompt_tokens),), turn.output_tokens)
    return workload._replace(sessions=made)


def effective(outcome: Outcome, scenario: Scenario) -> dict[int, float]:
    """Share of all requests that were served within both limits, by TBT limit in ms."""
    gaps_s = between_tokens_s(outcome, scenario.profile, decodes_apart=scenario.prefills > 0)
    in_time = [
        gap_s or 0.0
        for gap_s, end, ttft_s in zip(gaps_s, outcome.end, outcome.ttft_s, strict=True)
        if end == End.OK and ttft_s <= TTFT_S
    ]
    return {limit: sum(gap_s <= limit / 1e3 for gap_s in in_time) / len(outcome) for limit in TBT_MS}


def measure(reduced: bool, say: Callable[[str], None]) -> list[Line]:
    served = part_of_it(reduced, 3000)
    whole, chunked, apart = alone(WHOLE), alone(CHUNK), placement.scenario(pooled=True)
    shares: dict[str, dict[int, float]] = {}
    prefill_s: dict[str, float] = {}
    for name, scenario, arm, asked in (
        ("Mooncake", apart, "mooncake_alg1", served),
        ("vLLM", whole, "least_requests", strangers(served)),
        ("prefix caching", whole, "least_requests", served),
        ("chunked prefill", chunked, "least_requests", strangers(served)),
    ):
        say(name)
        outcome = outcome_of(scenario, arm, asked)
        shares[name], prefill_s[name] = effective(outcome, scenario), sum(outcome.prefill_s)
    ours = shares.pop("Mooncake")
    gains = [_gain(ours[limit], max(share[limit] for share in shares.values())) for limit in TBT_MS]
    lines = [
        Line(f"effective requests, TBT <= {limit} ms: more than the best baseline", f"+{wanted}", gain, wanted / 2,
             why=WHY, unit="%")
        for (limit, wanted), gain in zip(TBT_MS.items(), gains, strict=True)
    ]  # fmt: skip
    saved = ratio(prefill_s["prefix caching"] - prefill_s["Mooncake"], prefill_s["prefix caching"])
    lines += [
        Line(f"share effective at {limit} ms, Mooncake", "near 100", 100 * ours[limit], unit="%") for limit in ours
    ]
    rises = gains[0] >= gains[1] >= gains[2]
    return [
        *lines,
        Line("the gains fall with the limit", "yes", float(rises), 1.0, 1.0, unit="yes/no"),
        Line("prefill GPU time saved against prefix caching in HBM", "30 (29-61 over three traces)",
             None if saved is None else 100 * saved, 29.0, 61.0, unit="%"),
    ]  # fmt: skip


def _gain(ours: float, theirs: float) -> float:
    return 100 * (ours / max(theirs, 1e-3) - 1)


ROWS = (Row("capacity", "Mooncake FAST'25, Figures 1 and 8: conversation, 16 x 8 A800", measure, 70, 20),)
