"""Frames between replicas whose versions differ by one: what the older one does not know is skipped."""

from __future__ import annotations

import msgspec

from router.control.replicas.frames import (
    BeatAck,
    decode_ack,
    decode_messages,
    decode_replica_frame,
    encode_ack,
    encode_replica_frame,
)
from router.control.workers.messages import AllLoads, DrainMessage, LoadMessage, PolicyRule, SessionMoved
from router.fleet.worker_share import WorkerShare

SAID = [
    LoadMessage("a/0", WorkerShare(2, 1, 300, 45000.5, 900, 1000)),
    SessionMoved(False, "m", "0a1b", "a/0"),
    DrainMessage("a", True, 3, "run1"),
    AllLoads({"a/0": WorkerShare(requests=1)}),
]


def test_a_frame_is_read_as_it_was_written() -> None:
    frame = decode_replica_frame(encode_replica_frame("news", "run1", 7, 12.5, SAID))
    assert frame is not None
    assert (frame.kind, frame.run, frame.number, frame.stamp_s) == ("news", "run1", 7, 12.5)
    assert decode_messages(frame) == (SAID, 0)


def test_messages_of_a_newer_version_are_skipped_and_counted() -> None:
    unknown, longer = ["BreakerOpened", "a/0"], ["SessionMoved", False, "m", "0a1b", "a/0", "a field of tomorrow"]
    payload = msgspec.msgpack.encode(["news", "run1", 1, 0.5, [unknown, SAID[2], longer], "a field of tomorrow"])
    frame = decode_replica_frame(payload)
    assert frame is not None
    assert decode_messages(frame) == ([SAID[2], SAID[1]], 1)


def test_a_load_of_a_newer_version_is_read_without_what_is_new_and_one_of_an_older_version_too() -> None:
    newer, older = ["LoadMessage", "a/0", [2, 1, 300, 45000.5, 900, 1000, 950, 77]], ["LoadMessage", "b/0", [1, 1]]
    frame = decode_replica_frame(msgspec.msgpack.encode(["news", "run1", 1, 0.5, [newer, older]]))
    assert frame is not None
    loads = [
        LoadMessage("a/0", WorkerShare(2, 1, 300, 45000.5, 900, 1000, 950)),
        LoadMessage("b/0", WorkerShare(requests=1, prefilling=1)),
    ]
    assert decode_messages(frame) == (loads, 0)


def test_what_only_workers_tell_each_other_is_not_taken_from_a_replica() -> None:
    payload = encode_replica_frame("news", "run1", 1, 0.5, [PolicyRule(7, {}, "warm", None, [], "{}")])
    frame = decode_replica_frame(payload)
    assert frame is not None
    assert decode_messages(frame) == ([], 1)


def test_other_bytes_are_no_frame_and_no_acknowledgement() -> None:
    for payload in (b"", b"\xc0", b"\x91\xa4news", b"{}"):
        assert decode_replica_frame(payload) is None
        assert decode_ack(payload) is None
    ack = BeatAck("run2", 3.25, "state")
    assert decode_ack(encode_ack(ack)) == ack
