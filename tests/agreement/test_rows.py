"""Rows of the table at a size for every test run: the effects are there, in the published direction, about as large."""

from __future__ import annotations

import pytest

from router.sim.outcome import End, Outcome
from router.sim.workloads import Arrivals, Span, Workload
from tests.agreement import agents_pool, capacity, dynamo_replay, placement
from tests.agreement.rows import ROWS
from tests.agreement.windows import Window


def test_rows_have_names_of_their_own() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS) >= 6


def test_a_pool_behind_prefill_and_decode_multiplies_what_agents_get_done() -> None:
    # Published: 3.8 times the throughput, hits from 1.7 to 92.2 %. Fewer agents and a short window: half of that.
    window = Window(100.0, 250.0)
    bare, pooled = (agents_pool.figures(1, "codex", 30, window, pooled=pooled) for pooled in (False, True))
    assert pooled.requests_per_s > 1.9 * bare.requests_per_s
    assert bare.hit_share is not None
    assert bare.hit_share < 0.05
    assert pooled.hit_share is not None
    assert pooled.hit_share > 0.85


def test_the_clock_of_dynamos_engine_is_met_at_a_full_step_and_in_decoding() -> None:
    theirs_ms = 16.5 + 0.01518 * 8192 + 4.21e-7 * 8192**2  # 169.1
    assert 1e3 * dynamo_replay.PROFILE.step_s(8192, 0, 0, 0) == pytest.approx(theirs_ms, rel=0.1)
    used = 0.1
    theirs_ms = 5.74 + 54.01 * used - 25.74 * used**2  # 10.9
    assert 1e3 * dynamo_replay.PROFILE.step_s(0, 0, 8, used * 2**20) == pytest.approx(theirs_ms, rel=0.05)


def test_without_reuse_no_two_prompts_begin_alike() -> None:
    made = Arrivals()
    for at_s in (0.0, 1.0):
        made.add(at_s, (Span(7, 100), Span(8, 50)), 10)
    found = capacity.strangers(Workload("x", 0, made, is_closed=False))
    first, second = (session.turns[0] for session in found.sessions)
    assert first.prompt_tokens == second.prompt_tokens == 150
    assert {span.source for span in first.fresh}.isdisjoint(span.source for span in second.fresh)


def test_a_request_is_effective_within_both_limits() -> None:
    outcome = Outcome(1)
    for ttft_s, duration_s, end in (
        (1.0, 2.0, End.OK),
        (31.0, 32.0, End.OK),
        (1.0, 21.0, End.OK),
        (0.0, 0.0, End.SHED),
    ):
        outcome.arrived_s.append(0.0)
        outcome.ttft_s.append(ttft_s)
        outcome.duration_s.append(duration_s)
        outcome.output_tokens.append(101)
        outcome.prompt_tokens.append(10)
        outcome.end.append(end)
        outcome.instance.append(0)
        for column in (outcome.local_tokens, outcome.host_tokens, outcome.pool_tokens):
            column.append(0)
    # Intervals: 10 ms; 10 ms but a late first token; 200 ms; none. Of four requests.
    found = capacity.effective(outcome, placement.scenario(pooled=True))
    assert found == {100: 0.25, 200: 0.5, 300: 0.5}
