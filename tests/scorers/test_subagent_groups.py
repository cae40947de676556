from typing import Any

import pytest

from scorers.contract import View
from scorers.subagent_groups import SubagentGroups
from tests.suites.views import a_load, a_row, a_view


def view(*requests: int, parent: str | None = "p", last_target: str | None = None, **known: Any) -> View:
    rows = [a_row(name, load=a_load(requests=count)) for name, count in zip("abc", requests, strict=False)]
    return a_view(*rows, session="child", parent=parent, last_target=last_target, **known)


def place(scorer: SubagentGroups, seen: View) -> str:
    """Return where the request goes, and let the scorer learn it."""
    costs = list(scorer.score(seen))
    chosen = seen.rows[costs.index(min(costs))]
    scorer.picked(seen, chosen)
    return chosen.instance


def test_siblings_follow_the_first_of_them() -> None:
    scorer = SubagentGroups()
    assert place(scorer, view(2, 0)) == "b"
    assert place(scorer, view(0, 32)) == "b"
    assert place(scorer, view(0, 1, parent="q")) == "a"  # each parent has a group of its own


def test_the_group_counts_and_not_the_own_session() -> None:
    scorer = SubagentGroups()
    assert place(scorer, view(2, 0, last_target="a/0")) == "b"
    assert place(scorer, view(0, 5, last_target="a/0")) == "b"


def test_a_group_moves_as_a_whole_from_above_the_threshold_to_fewer_requests() -> None:
    scorer = SubagentGroups()
    place(scorer, view(2, 0))
    assert scorer.score(view(33, 33)) == [33, -1]
    assert place(scorer, view(32, 33)) == "a"
    assert place(scorer, view(20, 0)) == "a"


def test_a_group_ends_after_300_s_without_a_request() -> None:
    scorer = SubagentGroups()
    place(scorer, view(2, 0, now_s=10.0))
    place(scorer, view(0, 5, now_s=200.0))
    assert scorer.score(view(0, 5, now_s=499.0)) == [0, -1]
    assert scorer.score(view(0, 5, now_s=500.0)) == [0, 5]


def test_a_single_candidate_keeps_the_group_alive_but_where_it_is() -> None:
    scorer = SubagentGroups()
    place(scorer, view(2, 0, now_s=10.0))
    assert place(scorer, view(7, now_s=300.0)) == "a"
    assert scorer.score(view(0, 5, now_s=500.0)) == [0, -1]
    assert place(SubagentGroups(), view(7)) == "a"


def test_without_a_parent_the_session_stays_under_the_same_threshold() -> None:
    scorer = SubagentGroups()
    assert scorer.score(view(32, 0, parent=None, last_target="a/0")) == [-1, 0]
    assert scorer.score(view(33, 0, parent=None, last_target="a/0")) == [33, 0]
    scorer.picked(view(1, 0, parent=None), view(1, 0).rows[0])
    assert scorer._groups == {}


@pytest.mark.parametrize("last_target", [None, "gone/0"])
def test_without_a_target_the_fewest_requests_decide(last_target: str | None) -> None:
    assert SubagentGroups().score(view(3, 1, parent=None, last_target=last_target)) == [3, 1]


def test_bounds() -> None:
    with pytest.raises(ValueError, match=r"group_idle_ttl_s: found 0\.0, wanted more than 0"):
        SubagentGroups(group_idle_ttl_s=0.0)
