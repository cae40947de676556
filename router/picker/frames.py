"""The frames of HTTP/2 (RFC 9113): kinds, flags, error codes, and payload fields that are read without any
state.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, HAS_PRIORITY = 1, 1, 4, 8, 32
NO_ERROR, PROTOCOL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED, FRAME_SIZE_ERROR = 0, 1, 3, 5, 6
REFUSED_STREAM, COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 7, 9, 11
MAX_WINDOW, MAX_STREAM_ID = (1 << 31) - 1, (1 << 31) - 1
SETTINGS_BYTES = 1024  # of one SETTINGS frame; there are some ten names
U32 = struct.Struct(">I")
HEAD = struct.Struct(">BHBBI")  # of a frame: size as 8 and 16 bits, kind, flags, id of the call
_SETTING = struct.Struct(">HI")


class Http2Error(Exception):
    """The peer has violated the protocol; `code` is sent in GOAWAY."""

    def __init__(self, code: int) -> None:
        super().__init__(f"HTTP/2 error {code}")
        self.code = code


class PeerSettings(NamedTuple):
    """The settings of a peer that are used here; None: not set."""

    window: int | None
    frame: int | None


def write_settings(settings: dict[int, int]) -> bytes:
    """Return the payload of a SETTINGS frame."""
    return b"".join(_SETTING.pack(*pair) for pair in settings.items())


def read_settings(id: int, payload: memoryview) -> PeerSettings:
    """Return the settings of a SETTINGS frame, with the last of several values of a name. Raises `Http2Error`."""
    if len(payload) % 6 or id:
        raise Http2Error(FRAME_SIZE_ERROR)
    if len(payload) > SETTINGS_BYTES:
        raise Http2Error(ENHANCE_YOUR_CALM)
    settings: dict[int, int] = dict(_SETTING.iter_unpack(payload))
    window, frame = settings.get(4), settings.get(5)
    if window is not None and window > MAX_WINDOW:
        raise Http2Error(FLOW_CONTROL_ERROR)
    if frame is not None and not 16_384 <= frame < 1 << 24:
        raise Http2Error(PROTOCOL_ERROR)
    return PeerSettings(window, frame)


def read_increment(payload: memoryview) -> int:
    """Return the number of bytes by which a WINDOW_UPDATE frame widens a window. Raises `Http2Error`."""
    if len(payload) != 4:
        raise Http2Error(FRAME_SIZE_ERROR)
    more: int = U32.unpack(payload)[0] & MAX_WINDOW
    if not more:
        raise Http2Error(PROTOCOL_ERROR)
    return more


def unpad(payload: memoryview, flags: int) -> memoryview:
    """Return a payload without its padding. Raises `Http2Error`."""
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise Http2Error(PROTOCOL_ERROR)
    return payload[1 : len(payload) - payload[0]]
