"""What waits to be sent: the last load of each target, all else in order; and what is gathered of others' loads."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.control.peers.loads import ReportedLoads
from router.control.peers.messages import LoadMessage, SessionMoved
from router.control.peers.outbox import Outbox
from router.fleet.worker_share import NO_SHARE, WorkerShare
from router.kvcache.events import TargetId

A, B = TargetId("a/0"), TargetId("b/0")
MOVE = SessionMoved(False, "m", "s", A, 1.0)


class Gathering:
    def __init__(self) -> None:
        self.woken = 0
        self.shares = {A: WorkerShare(requests=1), B: WorkerShare(requests=5)}
        self.outbox = Outbox(self.shares.__getitem__, self.wake)

    def wake(self) -> None:
        self.woken += 1


def test_a_target_is_in_it_once_with_its_load_when_it_is_taken() -> None:
    gathering = Gathering()
    for _ in range(3):
        gathering.outbox.report_load(A)
    gathering.shares[A] = WorkerShare(requests=4)
    assert gathering.outbox.take() == [LoadMessage(A, WorkerShare(requests=4))]
    assert gathering.outbox.take() == []


def test_everything_else_keeps_its_order() -> None:
    gathering = Gathering()
    moves = [SessionMoved(False, "m", name, A, 1.0) for name in "xyz"]
    for message in moves:
        gathering.outbox.send(message)
    gathering.outbox.report_load(B)
    gathering.outbox.send(MOVE)
    assert gathering.outbox.take() == [LoadMessage(B, WorkerShare(requests=5)), *moves, MOVE]


def test_the_sender_is_woken_once_until_it_is_taken() -> None:
    gathering = Gathering()
    gathering.outbox.report_load(A)
    gathering.outbox.report_load(B)
    gathering.outbox.send(MOVE)
    assert gathering.woken == 1
    gathering.outbox.take()
    gathering.outbox.send(MOVE)
    assert gathering.woken == 2


def test_the_sum_of_all_but_some() -> None:
    loads = ReportedLoads()
    for number, run in enumerate("abc", 1):
        loads.put(run, A, WorkerShare(number, number, 10 * number, 0.5, 100, 100))
    assert loads.total(A) == WorkerShare(6, 6, 60, 1.5, 300, 300)
    assert loads.total(A, excluding={"b"}) == WorkerShare(4, 4, 40, 1.0, 200, 200)
    assert loads.total(A, excluding="abc") == NO_SHARE
    assert loads.total(B) == NO_SHARE


def test_loads_are_sent_in_the_order_of_their_first_booking() -> None:
    targets = [TargetId(f"{n}/0") for n in range(50)]
    outbox = Outbox(lambda _: NO_SHARE, lambda: None)
    for target in (*targets, *reversed(targets)):
        outbox.report_load(target)
    assert outbox.take() == [LoadMessage(target, NO_SHARE) for target in targets]


def test_the_latest_report_counts() -> None:
    loads = ReportedLoads()
    loads.put("a", A, WorkerShare(requests=5))
    loads.put("a", A, WorkerShare(requests=2))
    assert loads.total(A) == WorkerShare(requests=2)
    loads.put("a", A, NO_SHARE)
    assert (loads.total(A), loads.drop("a")) == (NO_SHARE, [])


def test_a_process_that_is_gone_has_nothing_booked() -> None:
    loads = ReportedLoads()
    loads.put("a", A, WorkerShare(requests=1))
    loads.put("a", B, WorkerShare(requests=1))
    loads.put("b", B, WorkerShare(requests=7))
    assert sorted(loads.drop("a")) == [A, B]
    assert (loads.total(A), loads.total(B)) == (NO_SHARE, WorkerShare(requests=7))
    assert loads.drop("a") == []


@given(st.dictionaries(st.sampled_from("abcde"), st.tuples(*[st.integers(0, 100)] * 6).map(lambda n: WorkerShare(*n))))
def test_the_whole_is_one_and_all_the_others(shares: dict[str, WorkerShare]) -> None:
    loads = ReportedLoads()
    for run, share in shares.items():
        loads.put(run, A, share)
    for run, share in shares.items():
        assert share.plus(loads.total(A, excluding={run})) == loads.total(A)
