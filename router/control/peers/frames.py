"""Frames between two peers: messages one way, acknowledgements of beats and replies the other way.

    news    messages for all peers, numbered without gaps
    direct  messages for the peer `to`
    beat    no messages; sent at a fixed interval, the only kind that is acknowledged
    ask     a query of a peer that starts (`StateAsk`), which is answered in messages of two parts or more
    leave   no messages; the sender stops, and has no bookings left

Every frame and every acknowledgement begins with the version of the protocol. A peer of another version is logged
and left out: neither applies what the other sends. Within a version, new fields of messages come at the end with
defaults, and an older reader ignores them; messages of an unknown kind are skipped and counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, Union

import msgspec

from router.control.peers.parts import Message

PROTOCOL = 2
"""Version 1 is that of warmroute 0.2, whose frames begin with their kind."""

FrameKind = Literal["news", "direct", "beat", "ask", "leave"]
StatePart = Literal["outline", "instances", "target", "history"]
"""The state that a starting peer requests (`learned_state.py`); history: sessions and stored responses."""


class PeerFrame(msgspec.Struct, frozen=True, array_like=True):
    version: int
    kind: str  # a `FrameKind`, or one that this build does not know
    host: str  # id of the sender's host: one for all of its workers
    run: str  # id of the sender's run
    number: int  # of the sender's last news, this frame included
    stamp_s: float  # the sender's monotonic clock when it was sent
    to: str = ""  # run id of the receiver; empty: all
    messages: msgspec.Raw = msgspec.Raw(b"\x90")  # a list


class ForeignPeer(NamedTuple):
    """The sender of a frame of another version."""

    run: str
    version: int


class BeatAck(msgspec.Struct, frozen=True, array_like=True):
    version: int
    host: str  # id of the receiver's host
    run: str  # id of the receiver's run
    stamp_s: float  # of the beat
    runs: list[str] = []  # of all workers that receive what is sent to this address


class StateAsk(msgspec.Struct, frozen=True, array_like=True):
    number: int  # of the query, assigned by the peer that sends it
    part: str  # a `StatePart`, or one that this build does not know
    argument: str = ""  # for "target": its id


class StateAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The first part of a message that answers a `StateAsk`; the other parts together are the payload."""

    run: str  # id of the run of the peer that answers
    ask: int  # number of the query
    last: bool  # no further message follows


class _AnyHead(msgspec.Struct, frozen=True, array_like=True):
    """The beginning of a frame of any version."""

    first: int | str
    second: str
    third: Any = None


UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Exceptions of a decoder: for text that is not UTF-8 and for deep nesting, msgspec raises Python's own."""

_encode = msgspec.msgpack.Encoder().encode
_decode_frame = msgspec.msgpack.Decoder(PeerFrame).decode
_decode_head = msgspec.msgpack.Decoder(_AnyHead).decode
_decode_ack = msgspec.msgpack.Decoder(BeatAck).decode
_decode_ask = msgspec.msgpack.Decoder(StateAsk).decode
_decode_answer = msgspec.msgpack.Decoder(StateAnswer).decode
_decode_list = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


class Sender(NamedTuple):
    """The ids of a process that sends frames: its host's, and its run's."""

    host: str
    run: str


def encode_frame(
    kind: FrameKind,
    sender: Sender,
    number: int,
    stamp_s: float,
    messages: Sequence[Message | StateAsk] = (),
    to: str = "",
) -> bytes:
    return _encode((PROTOCOL, kind, *sender, number, stamp_s, to, messages))


def decode_frame(payload: bytes) -> PeerFrame | ForeignPeer | None:
    """Return the frame, or the sender of a frame of another version; None if it is neither."""
    try:
        frame = _decode_frame(payload)
        return frame if frame.version == PROTOCOL else ForeignPeer(frame.run, frame.version)
    except UNREADABLE:
        return _find_foreign(payload)


def _find_foreign(payload: bytes) -> ForeignPeer | None:
    try:
        head = _decode_head(payload)
    except UNREADABLE:
        return None
    if isinstance(head.first, str):
        return ForeignPeer(head.second, 1)
    return ForeignPeer(head.third, head.first) if isinstance(head.third, str) and head.first != PROTOCOL else None


class MessageCodec:
    """Decodes the messages in frames. `kinds` are the kinds that this build supports."""

    def __init__(self, kinds: Iterable[type[Message]]) -> None:
        known: Any = Union[tuple(kinds)]  # noqa: UP007  of kinds that are known at run time
        self._decode_one = msgspec.msgpack.Decoder(known).decode
        self._decode_all = msgspec.msgpack.Decoder(list.__class_getitem__(known)).decode

    def decode(self, frame: PeerFrame) -> tuple[list[Message], int]:
        """Return the messages of a frame, and how many were skipped because this build does not know them."""
        try:
            return self._decode_all(frame.messages), 0
        except UNREADABLE:  # perhaps from a newer build
            return self._decode_known(frame)

    def _decode_known(self, frame: PeerFrame) -> tuple[list[Message], int]:
        found: list[Message] = []
        skipped = 0
        try:
            messages = _decode_list(frame.messages)
        except UNREADABLE:
            return [], 1
        for raw in messages:
            try:
                found.append(self._decode_one(raw))
            except UNREADABLE:
                skipped += 1
        return found, skipped


def encode_ack(ack: BeatAck) -> bytes:
    return _encode(ack)


def decode_ack(payload: bytes) -> BeatAck | None:
    """Return the acknowledgement; None when it is not one of this version."""
    try:
        ack = _decode_ack(payload)
    except UNREADABLE:
        return None
    return ack if ack.version == PROTOCOL else None


def decode_ask(frame: PeerFrame) -> StateAsk | None:
    """Return the query in a frame of kind "ask"; None if there is none."""
    try:
        requests = _decode_list(frame.messages)
        return _decode_ask(requests[0]) if requests else None
    except UNREADABLE:
        return None


def encode_answer(head: StateAnswer) -> bytes:
    return _encode(head)


def decode_answer(payload: bytes) -> StateAnswer | None:
    """Return the first part of an answer; None when it is not one."""
    try:
        return _decode_answer(payload)
    except UNREADABLE:
        return None
