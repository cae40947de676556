import pytest

from scorers.kv_usage import KvUsage
from tests.suites.views import a_load, a_row, a_view


def test_the_share_in_use_is_the_cost() -> None:
    view = a_view(a_row("a", load=a_load(kv_usage=0.25)), a_row("b", load=a_load(kv_usage=1.0)))
    assert KvUsage().score(view) == [0.25, 1.0]


@pytest.mark.parametrize("silent", [{"kv_usage": None}, {"kv_usage": 0.0, "metrics_age_s": 60.0}])
def test_silence_is_not_emptiness(silent: dict) -> None:
    # the others use 0.2 and 0.8: mean 0.5
    view = a_view(
        a_row("a", load=a_load(kv_usage=0.2)), a_row("b", load=a_load(**silent)), a_row("c", load=a_load(kv_usage=0.8))
    )
    assert KvUsage().score(view) == pytest.approx([0.2, 0.5, 0.8])


def test_nobody_told() -> None:
    assert KvUsage().score(a_view(a_row("a"), a_row("b"))) == [0.0, 0.0]


def test_an_engine_that_exaggerates_stays_within_points() -> None:
    view = a_view(a_row("a", load=a_load(kv_usage=1.01)), a_row("b", load=a_load(kv_usage=-0.1)))
    assert KvUsage().score(view) == [1.0, 0.0]


def test_staleness_has_a_bound() -> None:
    with pytest.raises(ValueError, match=r"stale_s: found .*, wanted more than 0"):
        KvUsage(stale_s=-1.0)
