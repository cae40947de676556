import pytest

from scorers.contract import Row
from scorers.soft_affinity import SoftAffinity
from tests.suites.views import a_load, a_row, a_view


def rows(*requests: int) -> list[Row]:
    return [a_row(name, load=a_load(requests=count)) for name, count in zip("abc", requests, strict=False)]


def score(*requests: int, last_target: str | None = "a/0", scorer: SoftAffinity | None = None) -> list[float]:
    scorer = scorer or SoftAffinity()
    return list(scorer.score(a_view(*rows(*requests), session="s", last_target=last_target)))


def test_a_session_stays_up_to_the_threshold() -> None:
    assert score(32, 0) == [-1, 0]


def test_above_it_a_session_moves_to_one_with_two_requests_fewer() -> None:
    assert score(33, 31, 40) == [33, 31, 40]
    assert score(33, 32, 40) == [-1, 32, 40]


def test_a_margin_of_one_moves_to_any_less_loaded_target() -> None:
    strict = SoftAffinity(move_margin=1)
    assert score(33, 32, scorer=strict) == [33, 32]
    assert score(33, 33, scorer=strict) == [-1, 33]


@pytest.mark.parametrize("last_target", [None, "gone/0"])
def test_without_its_target_a_session_goes_to_the_fewest_requests(last_target: str | None) -> None:
    assert score(3, 1, last_target=last_target) == [3, 1]


def test_bounds() -> None:
    with pytest.raises(ValueError, match=r"move_margin: found 0, wanted at least 1"):
        SoftAffinity(move_margin=0)
