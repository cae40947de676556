"""Messages to bytes and back, however the bytes are cut; and what an outbox gathers."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.control.workers.messages import (
    AnswerMessage,
    AskMessage,
    FrameReader,
    LoadMessage,
    PolicyRule,
    RequestBegan,
    RequestEnded,
    SessionMoved,
    StartMessage,
    StopMessage,
    WorkerStopping,
    encode_frame,
)
from router.control.workers.outbox import Outbox
from router.fleet.worker_share import WorkerShare
from router.kvcache.events import TargetId

TOLD = [
    StartMessage(1, "{}", (1 << 64) - 1),
    LoadMessage("a/0", WorkerShare(2, 1, 300, 45000.5, 900, 1000)),
    SessionMoved(False, "m", "0a1b", "a/0"),
    PolicyRule(7, {"warm": "{}"}, "warm", None, ["b"], "{}"),
    RequestBegan(7, 10**12 + 5, "warm", b"\x00\xff", 12.25),
    RequestEnded(10**12 + 5, None, None, None, None, 3.5, None, 0),
    AskMessage(0, "records", '{"limit":7}'),
    AnswerMessage(0, b"[]"),
    WorkerStopping(),
    StopMessage(1.0),
]


@given(st.lists(st.lists(st.sampled_from(TOLD))), st.lists(st.integers(1, 40), min_size=1))
def test_what_was_told_is_heard_in_order_wherever_the_bytes_are_cut(
    frames: list[list[object]], cuts: list[int]
) -> None:
    data = b"".join(encode_frame(messages) for messages in frames)  # type: ignore[arg-type]
    heard, reading, at, turn = [], FrameReader(), 0, 0
    while at < len(data):
        size = cuts[turn % len(cuts)]
        heard += list(reading.feed(data[at : at + size]))
        at, turn = at + size, turn + 1
    assert heard == [message for messages in frames for message in messages]


@pytest.mark.parametrize("body", [b"\x91\xa4What", b"\x91\x91\xa4What", b"\xc0", b"\x91\x92\xa4Stop\x01\x01"])
def test_what_no_worker_tells_is_an_error(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        list(FrameReader().feed(len(body).to_bytes(4) + body))


# the outbox

A, B = TargetId("a/0"), TargetId("b/0")


class Gathering:
    def __init__(self) -> None:
        self.woken = 0
        self.shares = {A: WorkerShare(requests=1), B: WorkerShare(requests=5)}
        self.outbox = Outbox(self.shares.__getitem__, self.wake)

    def wake(self) -> None:
        self.woken += 1


def test_a_target_is_told_of_once_as_it_is_when_the_outbox_is_taken() -> None:
    gathering = Gathering()
    for _ in range(3):
        gathering.outbox.report_load(A)
    gathering.shares[A] = WorkerShare(requests=4)
    assert gathering.outbox.take() == [LoadMessage(A, WorkerShare(requests=4))]
    assert gathering.outbox.take() == []


def test_everything_else_keeps_its_order() -> None:
    gathering = Gathering()
    went = [SessionMoved(False, "m", name, A) for name in "xyz"]
    for message in went:
        gathering.outbox.send(message)
    gathering.outbox.report_load(B)
    gathering.outbox.send(StopMessage(1.0))
    assert gathering.outbox.take() == [LoadMessage(B, WorkerShare(requests=5)), *went, StopMessage(1.0)]


def test_who_sends_is_woken_once_until_the_outbox_is_taken() -> None:
    gathering = Gathering()
    gathering.outbox.report_load(A)
    gathering.outbox.report_load(B)
    gathering.outbox.send(StopMessage(1.0))
    assert gathering.woken == 1
    gathering.outbox.take()
    gathering.outbox.send(StopMessage(1.0))
    assert gathering.woken == 2
