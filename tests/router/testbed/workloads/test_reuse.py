"""Uses of blocks, counted by hand."""

from __future__ import annotations

from router.testbed.workloads import OpenArrivals, Session, Span, Turn, Workload
from router.testbed.workloads.reuse import BlockReuse, count_reuse


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
