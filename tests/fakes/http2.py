"""Frames of HTTP/2 and messages of gRPC as bytes, right and wrong ones."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import hpack

DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
CHECK, WATCH = b"/grpc.health.v1.Health/Check", b"/grpc.health.v1.Health/Watch"
WINDOW_SIZE = 4  # the name of a setting


def frame(kind: int, flags: int, id: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", id) + payload


def headers(id: int, path: bytes, flags: int = 4) -> bytes:
    """A header block that opens a call, of fields that are not remembered."""
    never = hpack.NeverIndexedHeaderTuple
    named = [(":path", path.decode()), (":authority", "r"), ("content-type", "application/grpc"), ("te", "trailers")]
    fields = [
        hpack.HeaderTuple(":method", "POST"),
        hpack.HeaderTuple(":scheme", "http"),
        *(never(*pair) for pair in named),
    ]
    return frame(HEADERS, flags, id, hpack.Encoder().encode(fields, huffman=False))


def message(data: bytes) -> bytes:
    return struct.pack(">BI", 0, len(data)) + data


def settings(*pairs: tuple[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in pairs))


def window(id: int, more: int) -> bytes:
    return frame(WINDOW, 0, id, struct.pack(">I", more))


def question(id: int, path: bytes = CHECK, data: bytes = b"") -> bytes:
    """A call with one message."""
    return headers(id, path) + frame(DATA, 1, id, message(data))


def ids(count: int, first: int = 1) -> Iterable[int]:
    """So many ids of calls, in order."""
    return range(first, first + 2 * count, 2)
