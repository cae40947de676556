"""Headers that tell a client how much of its limits per minute is left, in the words of the API that it speaks.

OpenAI names what is left and in which time all of it is back (`59.95s`); Anthropic, on `/v1/messages`, the moment.
"""

from __future__ import annotations

from datetime import UTC, datetime
from math import ceil
from typing import Final

from router.request.error_body import ANTHROPIC_PATHS
from router.tenants.ledger import LimitState, WindowState

MINUTE_MS: Final = 60_000
OPENAI_LINES: Final = b"x-ratelimit-limit-%b: %d\r\nx-ratelimit-remaining-%b: %d\r\nx-ratelimit-reset-%b: %b\r\n"
ANTHROPIC_LINES: Final = (
    b"anthropic-ratelimit-%b-limit: %d\r\nanthropic-ratelimit-%b-remaining: %d\r\nanthropic-ratelimit-%b-reset: %b\r\n"
)


def render_rate_limits(state: LimitState, path: str, now_wall_s: float) -> bytes:
    """Return the header lines of an answer to a request for `path`; none for limits that the tenant does not have."""
    render = _render_anthropic if path.startswith(ANTHROPIC_PATHS) else _render_openai
    lines = b""
    if state.requests is not None:
        lines = render(b"requests", state.requests, now_wall_s)
    if state.tokens is not None:
        lines += render(b"tokens", state.tokens, now_wall_s)
    return lines


def _render_openai(what: bytes, state: WindowState, now_wall_s: float) -> bytes:
    reset = format_duration(state.reset_s)
    return OPENAI_LINES % (what, state.allowed, what, state.remaining, what, reset)


def _render_anthropic(what: bytes, state: WindowState, now_wall_s: float) -> bytes:
    reset = datetime.fromtimestamp(ceil(now_wall_s + state.reset_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ").encode()
    return ANTHROPIC_LINES % (what, state.allowed, what, state.remaining, what, reset)


def format_duration(seconds: float) -> bytes:
    """Return a duration as OpenAI writes it (Go's format), in whole milliseconds: `0s`, `120ms`, `6.5s`, `1m0s`."""
    ms = ceil(seconds * 1e3)
    if ms == MINUTE_MS:
        return b"1m0s"  # of every request that was charged just now
    if 0 < ms < 1_000:
        return b"%dms" % ms
    minutes, rest_ms = divmod(ms, MINUTE_MS)
    text = f"{rest_ms // 1000}.{rest_ms % 1000:03d}".rstrip("0").rstrip(".") + "s"
    return (f"{minutes}m{text}" if minutes else text).encode()
