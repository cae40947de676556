from dataclasses import dataclass, field
from typing import Literal

import pytest

from scorers.parameters import (
    REQUIRED,
    check_above_0,
    check_at_least,
    check_parameters,
    check_shares,
    parameters,
)


@dataclass
class Example:
    share: float
    count: int = 3
    quick: bool = True
    mode: Literal["soft", "hard"] = "soft"
    limit: int | None = None
    seen: dict[str, int] = field(default_factory=dict, init=False)


def test_what_a_policy_file_may_set() -> None:
    known = parameters(Example)
    assert {name: (p.type_name, p.default) for name, p in known.items()} == {
        "share": ("a number", REQUIRED),
        "count": ("a whole number", 3),
        "quick": ("true or false", True),
        "mode": ("'soft' or 'hard'", "soft"),
        "limit": ("a whole number or null", None),
    }


def test_good_values_pass_and_whole_numbers_become_floats() -> None:
    given = check_parameters(Example, {"share": 1, "count": 5, "quick": False, "mode": "hard", "limit": None})
    assert given == {"share": 1.0, "count": 5, "quick": False, "mode": "hard", "limit": None}
    assert isinstance(given["share"], float)


@pytest.mark.parametrize(
    ("params", "complaint"),
    [
        ({"shrae": 1.0}, "unknown parameter 'shrae' (did you mean 'share'?); it has share, count, quick, mode, limit"),
        ({"zzz": 1.0}, "unknown parameter 'zzz'; it has share, count, quick, mode, limit"),
        ({"share": 1.0, "seen": {}}, "unknown parameter 'seen'; it has share, count, quick, mode, limit"),
        ({}, "parameter 'share': missing, wanted a number"),
        ({"share": "much"}, "parameter 'share': found 'much', wanted a number"),
        ({"share": True}, "parameter 'share': found True, wanted a number"),
        ({"share": float("nan")}, "parameter 'share': found nan, wanted a number"),
        ({"share": float("inf")}, "parameter 'share': found inf, wanted a number"),
        ({"share": 1, "count": 1.5}, "parameter 'count': found 1.5, wanted a whole number"),
        ({"share": 1, "count": True}, "parameter 'count': found True, wanted a whole number"),
        ({"share": 1, "quick": 1}, "parameter 'quick': found 1, wanted true or false"),
        ({"share": 1, "mode": "medium"}, "parameter 'mode': found 'medium', wanted 'soft' or 'hard'"),
        ({"share": 1, "limit": "no"}, "parameter 'limit': found 'no', wanted a whole number or null"),
    ],
)
def test_everything_else_is_refused_by_name(params: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError) as refusal:
        check_parameters(Example, params)
    assert str(refusal.value) == complaint


@dataclass
class Bare:
    pass


def test_a_plug_in_without_parameters_says_so() -> None:
    with pytest.raises(ValueError, match="unknown parameter 'x'; it has none"):
        check_parameters(Bare, {"x": 1})


def test_the_first_value_out_of_bounds_is_named() -> None:
    check_at_least(0, a=0, b=1.5)
    with pytest.raises(ValueError, match=r"b: found -0\.5, wanted at least 0"):
        check_at_least(0, a=0, b=-0.5, c=-1)
    check_above_0(a=0.1, b=2)
    with pytest.raises(ValueError, match=r"b: found 0, wanted more than 0"):
        check_above_0(a=1, b=0)


@pytest.mark.parametrize("value", [-0.1, 1.1])
def test_shares_lie_between_0_and_1(value: float) -> None:
    check_shares(a=0, b=1, c=0.5)
    with pytest.raises(ValueError, match=f"b: found {value}, wanted a share from 0 to 1"):
        check_shares(a=0.5, b=value)
