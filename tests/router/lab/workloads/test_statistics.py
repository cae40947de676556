"""The infinite cache by hand and against token by token counting, and the statistics of a workload of three turns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.lab.workloads.arrivals import OpenArrivals
from router.lab.workloads.model import Session, Span, Turn, Workload, make_token_ids, session_contexts, take_tokens
from router.lab.workloads.statistics import BlockReuse, InfiniteCache, compute_statistics, count_reuse

A, B = 1, 2
SESSION = Session(
    number=0,
    start_s=0.0,
    turns=(
        Turn(context_tokens=0, fresh=(Span(A, 4), Span(B, 6)), output_tokens=5, think_s=1.0),
        Turn(context_tokens=13, fresh=(Span(3, 7),), output_tokens=2, think_s=3.0),
    ),
)


def test_contexts_are_prompt_and_answer() -> None:
    (first, after_first), (second, after_second) = session_contexts(SESSION)
    assert first == [Span(A, 4), Span(B, 6)]
    answer = after_first[-1]
    assert answer.tokens == 4  # of 5: the last one's KV is never computed
    assert second == [Span(A, 4), Span(B, 6), Span(answer.source, 3), Span(3, 7)]  # 13 kept = 4 + 6 + 3
    assert after_second[:-1] == second


def test_cut() -> None:
    spans = [Span(A, 4), Span(B, 6)]
    assert take_tokens(spans, 0) == []
    assert take_tokens(spans, 4) == [Span(A, 4)]
    assert take_tokens(spans, 5) == [Span(A, 4), Span(B, 1)]
    assert take_tokens(spans, 99) == spans


def test_statistics_by_hand() -> None:
    other = Session(1, 0.0, (Turn(0, (Span(A, 4), Span(9, 6)), 4, 2.0),))
    real = compute_statistics(Workload("by hand", 0, (SESSION, other)), block_tokens=4)
    # prompts of 10, 20 and 10 tokens: nothing is known of the first; 13 tokens of the second, 3 whole blocks of 4;
    # of the third the 4 that it shares
    assert real.input_tokens == 40
    assert real.ideal_share == (0 + 12 + 4) / 40
    assert real.shared_share == 4 / 40
    assert (real.sessions, real.turns, real.median_turns) == (2, 3, 1.5)
    assert real.mean_first_tokens == 10
    assert real.mean_growth_tokens == 10
    assert real.median_last_tokens == 15
    assert real.output_tokens == 11
    assert real.median_think_s == 2.0
    assert real.per_s is None  # nobody knows when a closed loop's requests come
    assert (real.mean_input_tokens, real.median_input_tokens, real.p90_input_tokens) == (40 / 3, 10, 20)
    assert (real.mean_output_tokens, real.median_output_tokens, real.p90_output_tokens) == (11 / 3, 4, 5)


def test_statistics_of_an_open_loop() -> None:
    sessions = (Session(at, 0.25 * at, (Turn(0, (Span(A, 8),), at + 1, 0.0),)) for at in range(11))
    real = compute_statistics(Workload("open", 0, OpenArrivals.of(sessions), is_closed=False), block_tokens=4)
    assert real.per_s == 4.0
    assert (real.mean_output_tokens, real.median_output_tokens, real.p90_output_tokens) == (6, 6, 10)
    assert real.ideal_share == 10 * 4 / 88
    assert real.input_per_output == 88 / 66


def test_requests_that_all_come_at_once_have_no_rate() -> None:
    at_once = OpenArrivals.of(Session(at, 5.0, (Turn(0, (Span(A, 8),), 1, 0.0),)) for at in range(2))
    assert compute_statistics(Workload("open", 0, at_once, is_closed=False), 4).per_s is None


def test_an_empty_workload_has_no_statistics() -> None:
    with pytest.raises(ValueError, match="nothing: it has no requests"):
        compute_statistics(Workload("nothing", 0, ()), 4)


def test_a_prompt_that_is_all_there_still_computes_its_last_token() -> None:
    turn = Turn(0, (Span(A, 8),), 1, 0.0)
    twice = Workload("twice", 0, (Session(0, 0.0, (turn,)), Session(1, 1.0, (turn,))))
    assert compute_statistics(twice, block_tokens=4).ideal_share == 4 / 16  # 7 of 8 tokens are one whole block


spans = st.lists(st.builds(Span, st.integers(1, 3), st.integers(1, 5)), min_size=1, max_size=5)


@given(st.lists(spans, max_size=6), spans)
def test_matching_spans_is_matching_tokens(added: list[list[Span]], asked: list[Span]) -> None:
    """Counted over tokens by brute force, where spans of equal source end alike; else spans may only find less."""
    cache = InfiniteCache()
    for one in added:
        cache.add(one)
    texts = [_text(one) for one in added]
    longest = max((_common(_text(asked), text) for text in texts), default=0)
    assert cache.match(asked) <= longest
    for one in added:
        assert cache.match(one) == len(_text(one))


def _text(some: list[Span]) -> list[int]:
    return [token for span in some for token in make_token_ids(span, 0, range(1 << 30))]


def _common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def some(*prompts: tuple[Span, ...]) -> Workload:
    sessions = (Session(number, 0.0, (Turn(0, spans, 5, 0.0),)) for number, spans in enumerate(prompts))
    return Workload("some", 0, OpenArrivals.of(sessions), is_closed=False)


def test_uses_by_hand() -> None:
    # blocks of 4: the first prompt has A0 A1 (and 2 tokens), the second A0 and one of A and B, the third A0 A1
    real = count_reuse(some((Span(1, 10),), (Span(1, 6), Span(2, 2)), (Span(1, 8),)), 4)
    assert real == BlockReuse(blocks=3, mean_uses=6 / 3, most_uses=3, again_share=2 / 3)


def test_the_turns_of_a_session_use_what_they_keep() -> None:
    turns = (Turn(0, (Span(1, 8),), 4, 0.0), Turn(12, (Span(2, 4),), 4, 0.0))
    real = count_reuse(Workload("closed", 0, (Session(0, 0.0, turns),)), 4)
    assert real == BlockReuse(blocks=4, mean_uses=6 / 4, most_uses=2, again_share=2 / 4)


def test_prompts_without_a_full_block() -> None:
    assert count_reuse(some((Span(1, 3),)), 4) is None
