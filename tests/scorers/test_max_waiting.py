import pytest

from scorers.max_waiting import MaxWaiting
from tests.suites.views import a_load, a_row, a_view


def test_long_queues_go() -> None:
    view = a_view(*[a_row(f"h{n}", load=a_load(waiting=n)) for n in (0, 4, 5)])
    assert MaxWaiting(waiting=4).keep(view) == [True, True, False]


@pytest.mark.parametrize("silent", [{}, {"waiting": None}, {"waiting": 99, "metrics_age_s": 60.0}])
def test_silence_excludes_nobody(silent: dict) -> None:
    assert MaxWaiting(waiting=4).keep(a_view(a_row("a", load=a_load(**silent)))) == [True]


def test_bounds() -> None:
    with pytest.raises(ValueError, match=r"waiting: found -1, wanted at least 0"):
        MaxWaiting(waiting=-1)
    with pytest.raises(ValueError, match=r"stale_s: found 0, wanted more than 0"):
        MaxWaiting(stale_s=0)
