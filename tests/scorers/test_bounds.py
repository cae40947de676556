import pytest

from scorers.bounds import check_not_negative, check_shares


def test_the_first_bad_one_is_named() -> None:
    check_not_negative(a=0, b=1.5)
    with pytest.raises(ValueError, match=r"b: at least 0, not -0\.5"):
        check_not_negative(a=0, b=-0.5, c=-1)


@pytest.mark.parametrize("value", [-0.1, 1.1])
def test_shares_lie_between_0_and_1(value: float) -> None:
    check_shares(a=0, b=1, c=0.5)
    with pytest.raises(ValueError, match=f"b: a share between 0 and 1, not {value}"):
        check_shares(a=0.5, b=value)
