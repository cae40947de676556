import pytest

from router.cli.replay.report import share_of


@pytest.mark.parametrize(
    ("part", "whole", "said"),
    [(0, 0, "-"), (0, 3, "0 %"), (1, 3, "33.33 %"), (1, 2, "50 %"), (999_999, 1_000_000, "99.99 %"), (7, 7, "100 %")],
)
def test_a_share_is_never_rounded_up_to_all(part: int, whole: int, said: str) -> None:
    assert share_of(part, whole) == said
