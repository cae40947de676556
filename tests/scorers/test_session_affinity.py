from scorers.session_affinity import SessionAffinity
from tests.suites.views import a_row, a_view

ROWS = (a_row("a"), a_row("b"))


def test_back_to_the_last_target() -> None:
    assert SessionAffinity().score(a_view(*ROWS, session="s", last_target="b/0")) == [1.0, 0.0]


def test_a_rank_is_not_its_neighbour() -> None:
    view = a_view(a_row("a", rank=0), a_row("a", rank=1), session="s", last_target="a/1")
    assert SessionAffinity().score(view) == [1.0, 0.0]


def test_no_session_or_a_lost_target_prefers_nobody() -> None:
    assert SessionAffinity().score(a_view(*ROWS)) == [1.0, 1.0]
    assert SessionAffinity().score(a_view(*ROWS, session="s", last_target="gone/0")) == [1.0, 1.0]
