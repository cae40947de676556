"""Messages to bytes and back, however the bytes are cut."""

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
    frame,
)
from router.fleet.load import WorkerShare

TOLD = [
    StartMessage(1, "{}", (1 << 64) - 1),
    LoadMessage("a/0", WorkerShare(2, 1, 300, 45000.5, 900, 1000)),
    SessionMoved(False, "m", "0a1b", "a/0"),
    PolicyRule(7, {"warm": "{}"}, "warm", None, ["b"]),
    RequestBegan(7, 10**12 + 5, "warm", b"\x00\xff", 12.25),
    RequestEnded(10**12 + 5, None, None, None, None, 3.5, None, 0),
    AskMessage(0, "records", "50"),
    AnswerMessage(0, b"[]"),
    StopMessage(),
]


@given(st.lists(st.lists(st.sampled_from(TOLD))), st.lists(st.integers(1, 40), min_size=1))
def test_what_was_told_is_heard_in_order_wherever_the_bytes_are_cut(
    frames: list[list[object]], cuts: list[int]
) -> None:
    data = b"".join(frame(messages) for messages in frames)  # type: ignore[arg-type]
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
