"""Limits of one client connection in bytes and time, for all connections of a listener."""

from __future__ import annotations

from typing import NamedTuple

BODY_GRACE_S = 20.0  # with `MIN_BODY_RATE` bytes per second after it, the defaults of Apache's mod_reqtimeout
MIN_BODY_RATE = 500.0


class ConnectionLimits(NamedTuple):
    header_bytes: int
    header_timeout_s: float
    body_idle_timeout_s: float
    body_grace_s: float  # a body may lag this far behind a body that arrives at `MIN_BODY_RATE`
    keepalive_s: float
    stall_timeout_s: float  # a client that reads nothing of what was sent for this long is cut off
    requests_last: bool = False  # the next answer is a connection's last
