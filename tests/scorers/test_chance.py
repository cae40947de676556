from statistics import fmean

from scorers.chance import draws

NAMES = [f"host-{i}:8000/0" for i in range(2000)]


def test_uniform_between_0_and_1() -> None:
    drawn = draws(1, 2, NAMES)
    assert all(0 < u < 1 for u in drawn)
    # 2000 draws: the mean's standard deviation is sqrt(1/12/2000) = 0.0065; 5 of those
    assert abs(fmean(drawn) - 0.5) < 0.033
    for tenth in range(10):
        # 200 each, standard deviation sqrt(2000 * 0.1 * 0.9) = 13.4; 5 of those
        assert abs(sum(tenth / 10 <= u < (tenth + 1) / 10 for u in drawn) - 200) < 67


def test_every_argument_matters() -> None:
    drawn = draws(1, 2, ["a"])
    others = [draws(2, 2, ["a"]), draws(1, 3, ["a"]), draws(1, 2, ["b"]), draws(1, 2, ["a"], use="softmax")]
    assert drawn not in others
    assert draws(1, 2, ["a"]) == drawn


def test_a_draw_belongs_to_its_name() -> None:
    assert draws(1, 2, ["a", "b"]) == draws(1, 2, ["b", "a"])[::-1]


def test_the_same_in_every_process_and_release() -> None:
    """Logged choices are replayed by later releases: these numbers must never change."""
    assert draws(7, 42, ["10.0.0.1:8000/0"]) == [0.8402023473401296]


def test_any_seed_and_number_will_do() -> None:
    assert len({u for seed in (-1, 0, 2**63, 2**64 - 2) for u in draws(seed, 2**70 + 5, ["a"])}) == 4
