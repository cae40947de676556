"""The leader's table of what its followers have booked."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.control.workers.load_table import WorkerLoads
from router.fleet.load import NO_SHARE, WorkerShare
from router.kvcache.events import TargetId

A, B = TargetId("a/0"), TargetId("b/0")


def test_everybody_but_one() -> None:
    loads = WorkerLoads()
    for follower in (1, 2, 3):
        loads.put(follower, A, WorkerShare(follower, follower, 10 * follower, 0.5, 100, 100))
    assert loads.total(A) == WorkerShare(6, 6, 60, 1.5, 300, 300)
    assert loads.total(A, excluding=2) == WorkerShare(4, 4, 40, 1.0, 200, 200)
    assert loads.total(B) == NO_SHARE


def test_the_last_word_counts() -> None:
    loads = WorkerLoads()
    loads.put(1, A, WorkerShare(requests=5))
    loads.put(1, A, WorkerShare(requests=2))
    assert loads.total(A) == WorkerShare(requests=2)
    loads.put(1, A, NO_SHARE)
    assert (loads.total(A), loads.drop(1)) == (NO_SHARE, [])


def test_one_that_is_gone_has_nothing_booked() -> None:
    loads = WorkerLoads()
    loads.put(1, A, WorkerShare(requests=1))
    loads.put(1, B, WorkerShare(requests=1))
    loads.put(2, B, WorkerShare(requests=7))
    assert sorted(loads.drop(1)) == [A, B]
    assert (loads.total(A), loads.total(B)) == (NO_SHARE, WorkerShare(requests=7))
    assert loads.drop(1) == []


@given(st.dictionaries(st.integers(1, 5), st.tuples(*[st.integers(0, 100)] * 6).map(lambda n: WorkerShare(*n))))
def test_the_whole_is_one_and_all_the_others(shares: dict[int, WorkerShare]) -> None:
    loads = WorkerLoads()
    for follower, share in shares.items():
        loads.put(follower, A, share)
    for follower, share in shares.items():
        assert share.plus(loads.total(A, excluding=follower)) == loads.total(A)
