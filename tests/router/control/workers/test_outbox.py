"""What is gathered until it is sent."""

from __future__ import annotations

from router.control.workers.messages import LoadMessage, SessionMoved, StopMessage
from router.control.workers.outbox import Outbox
from router.fleet.load import WorkerShare
from router.kvcache.events import TargetId

A, B = TargetId("a/0"), TargetId("b/0")


class Desk:
    def __init__(self) -> None:
        self.woken = 0
        self.shares = {A: WorkerShare(requests=1), B: WorkerShare(requests=5)}
        self.outbox = Outbox(self.shares.__getitem__, self.wake)

    def wake(self) -> None:
        self.woken += 1


def test_a_target_is_told_of_once_as_it_is_when_the_outbox_is_taken() -> None:
    desk = Desk()
    for _ in range(3):
        desk.outbox.booked(A)
    desk.shares[A] = WorkerShare(requests=4)
    assert desk.outbox.take() == [LoadMessage(A, WorkerShare(requests=4))]
    assert desk.outbox.take() == []


def test_everything_else_keeps_its_order() -> None:
    desk = Desk()
    went = [SessionMoved(False, "m", name, A) for name in "xyz"]
    for message in went:
        desk.outbox.tell(message)
    desk.outbox.booked(B)
    desk.outbox.tell(StopMessage())
    assert desk.outbox.take() == [LoadMessage(B, WorkerShare(requests=5)), *went, StopMessage()]


def test_who_sends_is_woken_once_until_the_outbox_is_taken() -> None:
    desk = Desk()
    desk.outbox.booked(A)
    desk.outbox.booked(B)
    desk.outbox.tell(StopMessage())
    assert desk.woken == 1
    desk.outbox.take()
    desk.outbox.tell(StopMessage())
    assert desk.woken == 2
