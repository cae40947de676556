from __future__ import annotations

from router.lab.rng import Rng


def test_first_numbers_of_seed_zero_are_those_of_the_published_splitmix64() -> None:
    dice = Rng(0)
    assert [dice.bits() for _ in range(3)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_the_same_seed_says_the_same() -> None:
    one, other = Rng(7), Rng(7)
    assert [one.below(100) for _ in range(50)] == [other.below(100) for _ in range(50)]


def test_happens_about_as_often_as_told() -> None:
    dice = Rng(1)
    assert 2300 < sum(dice.happens(0.25) for _ in range(10_000)) < 2700


def test_certain_and_impossible() -> None:
    dice = Rng(1)
    assert all(dice.happens(1.0) for _ in range(1000))
    assert not any(dice.happens(0.0) for _ in range(1000))
