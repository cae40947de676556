import pytest

from router.testbed.simulator.kv_tier import KvTier, TransferLink
from router.testbed.simulator.scenario import LinkSpeed


def test_the_longest_unused_goes_first_its_tail_before_its_head() -> None:
    held = KvTier(50, 10)
    held.use([1, 2, 3])
    held.use([7, 8])
    held.use([1, 2, 3])  # used again
    held.use([9])
    assert held.count_held([7, 8]) == 1
    assert held.count_held([1, 2, 3]) == 3
    assert len(held) == 5


def test_a_pool_that_is_away_has_nothing_and_takes_nothing_and_comes_back_as_it_was() -> None:
    held = KvTier(50, 10)
    held.use([1, 2])
    held.away = True
    held.use([3])
    assert held.count_held([1, 2]) == 0
    held.away = False
    assert held.count_held([1, 2]) == 2
    assert len(held) == 2


def test_loads_over_one_link_follow_each_other() -> None:
    link = TransferLink(LinkSpeed(1000.0, 10.0))
    assert link.load(100, 0.0) == pytest.approx(0.11)
    assert link.load(100, 0.05) == pytest.approx(0.22)
    assert link.load(100, 1.0) == pytest.approx(1.11)
