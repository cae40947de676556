"""What is gathered until it is sent."""

from __future__ import annotations

from router.control.workers.messages import Load, Stop, Went
from router.control.workers.outbox import Outbox
from router.fleet.load import Share
from router.kvcache.events import TargetId

A, B = TargetId("a/0"), TargetId("b/0")


class Desk:
    def __init__(self) -> None:
        self.woken = 0
        self.shares = {A: Share(requests=1), B: Share(requests=5)}
        self.outbox = Outbox(self.shares.__getitem__, self.wake)

    def wake(self) -> None:
        self.woken += 1


def test_a_target_is_told_of_once_as_it_is_when_the_outbox_is_taken() -> None:
    desk = Desk()
    for _ in range(3):
        desk.outbox.booked(A)
    desk.shares[A] = Share(requests=4)
    assert desk.outbox.take() == [Load(A, Share(requests=4))]
    assert desk.outbox.take() == []


def test_everything_else_keeps_its_order() -> None:
    desk = Desk()
    went = [Went(False, "m", name, A) for name in "xyz"]
    for message in went:
        desk.outbox.tell(message)
    desk.outbox.booked(B)
    desk.outbox.tell(Stop())
    assert desk.outbox.take() == [Load(B, Share(requests=5)), *went, Stop()]


def test_who_sends_is_woken_once_until_the_outbox_is_taken() -> None:
    desk = Desk()
    desk.outbox.booked(A)
    desk.outbox.booked(B)
    desk.outbox.tell(Stop())
    assert desk.woken == 1
    desk.outbox.take()
    desk.outbox.tell(Stop())
    assert desk.woken == 2
