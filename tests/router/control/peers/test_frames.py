"""Frames between peers of different builds: within a version what is unknown is skipped, other versions are named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from router.control.peers.frames import (
    PROTOCOL,
    BeatAck,
    ForeignPeer,
    MessageCodec,
    PeerFrame,
    Sender,
    StateAnswer,
    StateAsk,
    decode_ack,
    decode_answer,
    decode_ask,
    decode_frame,
    encode_ack,
    encode_answer,
    encode_frame,
)
from router.control.peers.messages import AllLoads, DrainMessage, LoadMessage, SessionMoved
from router.control.peers.parts import Message
from router.fleet.worker_share import WorkerShare

SENDER = Sender("host1", "run1")
MESSAGES = [
    LoadMessage("a/0", WorkerShare(2, 1, 300, 45000.5, 900, 1000)),
    SessionMoved(False, "m", "0a1b", "a/0", 12.5),
    DrainMessage("a", True, 3, "run1"),
    AllLoads({"a/0": WorkerShare(requests=1)}),
]
CODEC = MessageCodec([LoadMessage, SessionMoved, DrainMessage, AllLoads])


class FirstVersionFrame(msgspec.Struct, frozen=True, array_like=True):
    """A frame of version 1, as that decodes it."""

    kind: str
    run: str
    number: int
    stamp_s: float
    messages: msgspec.Raw = msgspec.Raw(b"\x90")


class FirstVersionAck(msgspec.Struct, frozen=True, array_like=True):
    run: str
    stamp_s: float
    wants: str = "nothing"


def frame_of(messages: Sequence[Any], *more: object, version: int = PROTOCOL) -> PeerFrame:
    """Return a frame as another build may send it."""
    frame = decode_frame(msgspec.msgpack.encode([version, "news", *SENDER, 1, 0.5, "", messages, *more]))
    assert isinstance(frame, PeerFrame)
    return frame


def test_a_frame_is_decoded_as_it_was_encoded() -> None:
    frame = decode_frame(encode_frame("direct", SENDER, 7, 12.5, MESSAGES, "run2"))
    assert isinstance(frame, PeerFrame)
    assert (frame.version, frame.kind, frame.host, frame.run) == (PROTOCOL, "direct", "host1", "run1")
    assert (frame.number, frame.stamp_s, frame.to) == (7, 12.5, "run2")
    assert CODEC.decode(frame) == (MESSAGES, 0)


def test_messages_of_a_newer_build_are_skipped_and_counted() -> None:
    unknown, longer = ["BreakerOpened", "a/0"], ["SessionMoved", False, "m", "0a1b", "a/0", 12.5, "a field of tomorrow"]
    frame = frame_of([unknown, MESSAGES[2], longer], "a field of tomorrow")
    assert CODEC.decode(frame) == ([MESSAGES[2], MESSAGES[1]], 1)


def test_a_load_of_a_newer_build_is_decoded_without_what_is_new_and_one_of_an_older_build_too() -> None:
    newer, older = ["LoadMessage", "a/0", [2, 1, 300, 45000.5, 900, 1000, 950, 77]], ["LoadMessage", "b/0", [1, 1]]
    loads: list[Message] = [
        LoadMessage("a/0", WorkerShare(2, 1, 300, 45000.5, 900, 1000, 950)),
        LoadMessage("b/0", WorkerShare(requests=1, prefilling=1)),
    ]
    assert CODEC.decode(frame_of([newer, older])) == (loads, 0)


def test_messages_of_parts_that_this_process_does_not_have_are_skipped() -> None:
    assert MessageCodec([SessionMoved]).decode(frame_of(MESSAGES)) == ([MESSAGES[1]], 3)


def test_a_frame_of_another_version_names_its_sender() -> None:
    payload = msgspec.msgpack.encode([PROTOCOL + 1, "news", *SENDER, 1, 0.5, "", []])
    assert decode_frame(payload) == ForeignPeer("run1", PROTOCOL + 1)
    payload = msgspec.msgpack.encode([PROTOCOL + 1, "news", "run1", {"another": "order"}])
    assert decode_frame(payload) == ForeignPeer("run1", PROTOCOL + 1)


@pytest.mark.parametrize("kind", ["news", "direct", "beat", "ask", "leave"])
def test_a_frame_of_the_first_version_names_its_sender(kind: str) -> None:
    messages = [["LoadMessage", "a/0", [2, 1, 300, 45000.5, 900, 1000]]] if kind in ("news", "direct") else []
    assert decode_frame(msgspec.msgpack.encode([kind, "run1", 7, 12.5, messages])) == ForeignPeer("run1", 1)
    assert decode_frame(msgspec.msgpack.encode(FirstVersionFrame(kind, "run1", 7, 12.5))) == ForeignPeer("run1", 1)


def test_the_first_version_takes_no_frame_and_no_acknowledgement_for_its_own() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(encode_frame("news", SENDER, 7, 12.5, MESSAGES), type=FirstVersionFrame)
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(encode_ack(BeatAck(PROTOCOL, "host1", "run1", 3.25)), type=FirstVersionAck)
    assert decode_ack(msgspec.msgpack.encode(FirstVersionAck("run1", 3.25, "state"))) is None


def test_an_acknowledgement_is_decoded_as_it_was_encoded_and_one_of_another_version_is_none() -> None:
    ack = BeatAck(PROTOCOL, "host1", "run2", 3.25, ["run2", "run3"])
    assert decode_ack(encode_ack(ack)) == ack
    assert decode_ack(encode_ack(BeatAck(PROTOCOL + 1, "host1", "run2", 3.25))) is None


def test_questions_and_answers_are_decoded_as_they_were_encoded() -> None:
    ask, answer = StateAsk(3, "target", "a/0"), StateAnswer("run2", 3, True)
    frame = decode_frame(encode_frame("ask", SENDER, 0, 0.5, [ask]))
    assert isinstance(frame, PeerFrame)
    assert decode_ask(frame) == ask
    assert decode_ask(frame_of([])) is None
    assert decode_ask(frame_of(["x"])) is None
    assert decode_answer(encode_answer(answer)) == answer
    assert decode_answer(b"\x90") is None


def test_other_bytes_are_no_frame_and_no_acknowledgement() -> None:
    for payload in (b"", b"\xc0", b"\x91\xa4news", b"{}", msgspec.msgpack.encode([PROTOCOL, "news", "host1", "run1"])):
        assert decode_frame(payload) is None
        assert decode_ack(payload) is None


@pytest.mark.parametrize("wrong", [b"\xa4ly\x01\xc4", b"\x91" * 100_000], ids=["not UTF-8", "deep"])
def test_text_that_is_not_utf_8_and_deep_nesting_are_no_frame_either(wrong: bytes) -> None:
    """msgspec raises no error of its own for them."""
    head = b"\x98\x02\xa4news\xa5host1"
    for payload in (head + wrong, b"\x95\x02\xa5host1" + wrong, b"\x93" + wrong):
        assert decode_frame(payload) is None
        assert decode_ack(payload) is None
        assert decode_answer(payload) is None
    frame = frame_of([msgspec.Raw(b"\x96\xacSessionMoved\xc2\xa1m\xa4ly\x01\xc4\xa1t\x01"), MESSAGES[2]])
    assert CODEC.decode(frame) == ([MESSAGES[2]], 1)
