import pytest

from scorers.queue_depth import QueueDepth
from tests.suites.views import a_load, a_row, a_view


def test_between_the_shortest_and_the_longest_queue() -> None:
    # 2, 5, 12 requests: (2-2)/10, (5-2)/10, (12-2)/10
    view = a_view(*[a_row(name, load=a_load(requests=n)) for name, n in (("a", 2), ("b", 5), ("c", 12))])
    assert QueueDepth().score(view) == pytest.approx([0.0, 0.3, 1.0])


def test_requests_of_others_count() -> None:
    # ours 4 and 1, others' 0 and 6: 4 and 7
    view = a_view(
        a_row("a", load=a_load(requests=4, elsewhere=0)),
        a_row("b", load=a_load(requests=1, elsewhere=6)),
    )
    assert QueueDepth().score(view) == [0.0, 1.0]


@pytest.mark.parametrize("silent", [{"elsewhere": None}, {"elsewhere": 0, "metrics_age_s": 60.0}])
def test_silence_is_not_idleness(silent: dict) -> None:
    # others' at a and b: 10 and 2, so c is taken to have 6: 10, 2, 6 -> 1, 0, 4/8
    view = a_view(
        a_row("a", load=a_load(elsewhere=10)),
        a_row("b", load=a_load(elsewhere=2)),
        a_row("c", load=a_load(**silent)),
    )
    assert QueueDepth().score(view) == pytest.approx([1.0, 0.0, 0.5])


def test_without_any_telemetry_own_books_decide() -> None:
    view = a_view(a_row("a", load=a_load(requests=3)), a_row("b", load=a_load(requests=1)))
    assert QueueDepth().score(view) == [1.0, 0.0]


def test_equal_queues_cost_nothing() -> None:
    view = a_view(a_row("a", load=a_load(requests=7)), a_row("b", load=a_load(requests=7)))
    assert QueueDepth().score(view) == [0.0, 0.0]


def test_staleness_is_a_parameter() -> None:
    row = a_row("a", load=a_load(elsewhere=9, metrics_age_s=3.0))
    view = a_view(row, a_row("b", load=a_load(elsewhere=1, metrics_age_s=0.1)))
    assert QueueDepth(stale_s=5.0).score(view) == [1.0, 0.0]
    assert QueueDepth(stale_s=2.0).score(view) == [0.0, 0.0]
    with pytest.raises(ValueError, match=r"stale_s: found .*, wanted more than 0"):
        QueueDepth(stale_s=0.0)
