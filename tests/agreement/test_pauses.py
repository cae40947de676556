"""Time between tokens from an outcome's columns, worked by hand."""

from __future__ import annotations

import pytest

from router.lab.engine_profile import EngineProfile
from router.lab.simulator.outcome import RequestEnd, SimulationOutcome
from tests.agreement.pauses import Prompts, between_tokens_s

PROFILE = EngineProfile(name="x", kv_tokens=100_000, kv_bytes_per_token=1.0, us_per_token=100.0, ns_per_pair=0.0,
                  us_per_decode=0.0, weights_ms=10.0, ns_per_context_token=0.0, batched_tokens=4000)  # fmt: skip


def outcome_of(*rows: tuple[float, float, float, int, int, int]) -> SimulationOutcome:
    """Arrival, TTFT, duration, prompt tokens, cached tokens, output tokens; all at instance 0."""
    made = SimulationOutcome(1)
    for arrived_s, ttft_s, duration_s, prompt, cached, output in rows:
        made.arrived_s.append(arrived_s)
        made.ttft_s.append(ttft_s)
        made.duration_s.append(duration_s)
        made.prompt_tokens.append(prompt)
        made.local_tokens.append(cached)
        made.host_tokens.append(0)
        made.pool_tokens.append(0)
        made.output_tokens.append(output)
        made.instance.append(0)
        made.end.append(RequestEnd.OK)
    return made


def tbt_s(outcome: SimulationOutcome, prompts: Prompts = Prompts.BESIDE) -> list[float | None]:
    return between_tokens_s(outcome, PROFILE, prompts)


def test_a_prompt_of_another_is_the_longest_interval() -> None:
    # The first decodes from 1 s to 2.38 s: 101 tokens, 100 intervals. The second computes 3,000: 0.3 s.
    # The other 99 intervals last 1.08 / 99 = 10.9 ms; the longest tenth: (0.3 + 9 x 0.0109) / 10 = 39.8 ms
    found = tbt_s(outcome_of((0, 1.0, 2.38, 1000, 0, 101), (1.2, 0.4, 0.5, 3000, 0, 2)))
    assert found[0] == pytest.approx((0.3 + 9 * 1.08 / 99) / 10)


def test_a_long_prompt_comes_in_as_many_pauses_as_chunks() -> None:
    # 6,000 tokens: a chunk of 4,000 (0.4 s), then one of 2,000 (0.2 s). 19 intervals, the tenth is two of them.
    found = tbt_s(outcome_of((0, 1.0, 2.0, 100, 0, 20), (1.1, 0.7, 0.8, 6000, 0, 2)))
    assert found[0] == pytest.approx((0.4 + 0.2) / 2)


def test_only_what_was_computed_pauses() -> None:
    # 3,000 tokens of which 2,900 were cached: 100 tokens take 10 ms of memory time
    found = tbt_s(outcome_of((0, 1.0, 1.2, 100, 0, 21), (1.05, 0.05, 0.1, 3000, 2900, 1)))
    assert found[0] == pytest.approx(0.01, rel=0.01)


def test_where_decoding_is_apart_nobody_pauses() -> None:
    outcome = outcome_of((0, 1.0, 2.0, 1000, 0, 101), (1.2, 0.4, 0.5, 3000, 0, 1))
    assert tbt_s(outcome, Prompts.ELSEWHERE) == [pytest.approx(0.01), None]  # one token has no interval


def test_prompts_that_come_first_follow_each_other_without_a_token_between() -> None:
    # The first decodes from 1 s to 2.8 s: 20 intervals, the longest tenth is two. Two prompts of 3,000, 0.3 s each, end
    # at 1.6 and 1.9 s: one pause of 0.6 s, and a decode step ends it. The other 19 intervals last 1.2 s: 63 ms each.
    outcome = outcome_of((0, 1.0, 2.8, 100, 0, 21), (1.2, 0.4, 0.5, 3000, 0, 2), (1.3, 0.6, 0.7, 3000, 0, 2))
    step_s = 1.2 / 19
    assert tbt_s(outcome, Prompts.FIRST)[0] == pytest.approx((0.6 + 2 * step_s) / 2)
    assert tbt_s(outcome)[0] == pytest.approx((0.3 + 0.3) / 2)


def test_prompts_in_one_step_pause_as_long_as_both() -> None:
    # Both end at 1.9 s. They began at 1.3 s, and so right after a third one: 0.9 s in all.
    outcome = outcome_of((0, 1.0, 2.8, 100, 0, 11), (1.0, 0.3, 0.4, 3000, 0, 2), (1.2, 0.7, 0.8, 3000, 0, 2),
                         (1.25, 0.65, 0.8, 3000, 0, 2))  # fmt: skip
    step_s = (1.8 - 0.9) / 9
    assert tbt_s(outcome, Prompts.FIRST)[0] == pytest.approx(0.9 + step_s)


def test_its_own_prompt_is_no_pause() -> None:
    # Its 3,000 tokens end at 1 s; the next prompt follows at once, until 1.2 s. Only those 0.2 s are its tokens' pause.
    outcome = outcome_of((0.7, 0.3, 1.3, 3000, 0, 11), (0.8, 0.4, 0.5, 2000, 0, 2))
    step_s = (1.0 - 0.2) / 9
    assert tbt_s(outcome, Prompts.FIRST)[0] == pytest.approx(0.2 + step_s)
