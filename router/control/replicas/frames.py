"""What travels between two replicas: frames of messages one way, acknowledgements of beats and answers the other way.

    news    messages for all replicas, numbered without gaps
    direct  messages for one replica: the sender's state after a gap
    beat    nothing, at a fixed interval: the only kind that is acknowledged
    ask     a question of a router that starts (`StateAsk`), which is answered in messages of two parts or more
    leave   nothing: the sender stops, and has no bookings left

Replicas may differ by a version. New fields of messages, and of the values in them, are added at the end with defaults,
and left out by an older reader; messages of an unknown kind are skipped and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from router.control.replicas.policy_messages import AdmissionMessage, ExperimentMessage, PolicyMessage
from router.control.workers.messages import InstanceWanted, Message, SharedMessage, TenantReport

FrameKind = Literal["news", "direct", "beat", "ask", "leave"]
Wants = Literal["nothing", "state"]
"""nothing: the sender is followed without a gap; state: its bookings, drains and stored responses."""
StatePart = Literal["outline", "instances", "target", "history"]
"""What a starting router asks for: see `learned_state.py`; history: sessions and stored responses."""


class ReplicaFrame(msgspec.Struct, frozen=True, array_like=True):
    kind: str  # a `FrameKind`, or that of a newer version
    run: str  # id of the sender's run
    number: int  # of the sender's last news, this frame included
    stamp_s: float  # the sender's monotonic clock when it was sent
    messages: msgspec.Raw = msgspec.Raw(b"\x90")  # a list


class BeatAck(msgspec.Struct, frozen=True, array_like=True):
    run: str  # id of the receiver's run
    stamp_s: float  # of the beat
    wants: str = "nothing"  # one of `Wants`


class StateAsk(msgspec.Struct, frozen=True, array_like=True):
    number: int  # of the question, by the router that asks
    part: str  # a `StatePart`, or that of a newer version
    argument: str = ""  # of "target": its id


class StateAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The first part of a message that answers a `StateAsk`; the other parts together are the payload."""

    run: str  # id of the run of the router that answers
    ask: int  # number of the question
    last: bool  # no further message follows


AnyShared = SharedMessage | PolicyMessage | ExperimentMessage | AdmissionMessage | TenantReport | InstanceWanted

_encode = msgspec.msgpack.Encoder().encode
_decode_frame = msgspec.msgpack.Decoder(ReplicaFrame).decode
_decode_ack = msgspec.msgpack.Decoder(BeatAck).decode
_decode_ask = msgspec.msgpack.Decoder(StateAsk).decode
_decode_answer = msgspec.msgpack.Decoder(StateAnswer).decode
_decode_list = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_decode_message = msgspec.msgpack.Decoder(AnyShared).decode
_decode_messages = msgspec.msgpack.Decoder(list[AnyShared]).decode


def encode_replica_frame(
    kind: FrameKind, run: str, number: int, stamp_s: float, messages: Sequence[Message | StateAsk] = ()
) -> bytes:
    return _encode((kind, run, number, stamp_s, messages))


def decode_replica_frame(payload: bytes) -> ReplicaFrame | None:
    """Return the frame; None when it is not one."""
    try:
        return _decode_frame(payload)
    except msgspec.DecodeError:
        return None


def decode_messages(frame: ReplicaFrame) -> tuple[list[AnyShared], int]:
    """Return the messages of a frame, and how many were skipped because this version does not know them."""
    try:
        return _decode_messages(frame.messages), 0
    except msgspec.DecodeError:  # a newer version sent it, perhaps
        return _decode_known(frame)


def _decode_known(frame: ReplicaFrame) -> tuple[list[AnyShared], int]:
    found: list[AnyShared] = []
    skipped = 0
    try:
        messages = _decode_list(frame.messages)
    except msgspec.DecodeError:
        return [], 1
    for raw in messages:
        try:
            found.append(_decode_message(raw))
        except msgspec.DecodeError:
            skipped += 1
    return found, skipped


def encode_ack(ack: BeatAck) -> bytes:
    return _encode(ack)


def decode_ack(payload: bytes) -> BeatAck | None:
    """Return the acknowledgement; None when it is not one."""
    try:
        return _decode_ack(payload)
    except msgspec.DecodeError:
        return None


def decode_ask(frame: ReplicaFrame) -> StateAsk | None:
    """Return the question in a frame of kind "ask"; None when there is none."""
    try:
        asked = _decode_list(frame.messages)
        return _decode_ask(asked[0]) if asked else None
    except msgspec.DecodeError:
        return None


def encode_answer(head: StateAnswer) -> bytes:
    return _encode(head)


def decode_answer(payload: bytes) -> StateAnswer | None:
    """Return the first part of an answer; None when it is not one."""
    try:
        return _decode_answer(payload)
    except msgspec.DecodeError:
        return None
