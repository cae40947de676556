from __future__ import annotations

from typing import Any

import pytest

from scorers.contract import Needs, Overlap, View
from scorers.session_affinity import SessionAffinity
from tests.suites.views import a_row, a_view, an_overlap

ROWS = (a_row("a"), a_row("b"))


def test_back_to_the_last_target() -> None:
    assert SessionAffinity().score(a_view(*ROWS, session="s", last_target="b/0")) == [1.0, 0.0]


def test_a_rank_is_not_its_neighbour() -> None:
    view = a_view(a_row("a", rank=0), a_row("a", rank=1), session="s", last_target="a/1")
    assert SessionAffinity().score(view) == [1.0, 0.0]


def test_no_session_or_a_lost_target_prefers_nobody() -> None:
    assert SessionAffinity().score(a_view(*ROWS)) == [1.0, 1.0]
    assert SessionAffinity().score(a_view(*ROWS, session="s", last_target="gone/0")) == [1.0, 1.0]


# by: program


def a_child(overlap: Overlap | None, prompt_tokens: int | None = 100, **known: Any) -> View:
    facts: dict[str, Any] = {"session": "c", "parent": "p", "parent_target": "a/0", "prompt_tokens": prompt_tokens}
    return a_view(a_row("a", overlap), a_row("b", an_overlap(90)), **facts | known)


@pytest.mark.parametrize(
    ("overlap", "cost"),
    [
        (an_overlap(0), 1.0),
        (an_overlap(64), 0.36),
        (an_overlap(16, expected=80), 0.2),  # siblings have just been sent there
        (an_overlap(16, cpu=32, disk=48), 0.52),
        (an_overlap(96, expected=120), 0.0),
        (None, 0.0),
    ],
)
def test_a_sub_agent_is_kept_with_its_parent_as_far_as_they_share(overlap: Overlap | None, cost: float) -> None:
    assert SessionAffinity(by="program").score(a_child(overlap)) == pytest.approx([cost, 1.0])


def test_a_prompt_of_unknown_length_is_kept_with_its_parent() -> None:
    assert SessionAffinity(by="program").score(a_child(an_overlap(16), None)) == [0.0, 1.0]


def test_a_sub_agents_own_target_comes_before_its_parents() -> None:
    assert SessionAffinity(by="program").score(a_child(an_overlap(64), last_target="b/0")) == [1.0, 0.0]
    assert SessionAffinity(by="program").score(a_child(an_overlap(64), last_target="gone/0")) == [1.0, 1.0]


def test_by_session_a_parent_does_not_count() -> None:
    assert SessionAffinity().score(a_child(an_overlap(64))) == [1.0, 1.0]
    assert SessionAffinity(by="program").score(a_child(an_overlap(64), parent_target="gone/0")) == [1.0, 1.0]
    assert SessionAffinity(by="program").score(a_child(an_overlap(64), parent_target=None)) == [1.0, 1.0]


def test_only_programs_need_the_caches() -> None:
    assert SessionAffinity().needs == Needs.SESSION
    assert SessionAffinity(by="program").needs == Needs.SESSION | Needs.CACHE
