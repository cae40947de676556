"""Headers that tell a client how much of its limits per minute is left, in the words of the API that it speaks.

OpenAI names what is left and in which time all of it is back (`59.95s`); Anthropic, on `/v1/messages`, the moment.
"""

from __future__ import annotations

from datetime import UTC, datetime
from math import ceil

from router.proxy.call import Headers
from router.request.error_body import ANTHROPIC_PATHS
from router.tenants.ledger import LimitState, WindowState

MINUTE_MS = 60_000


def build_rate_limit_headers(state: LimitState, path: str, now_wall_s: float) -> Headers:
    """Return the headers of an answer to a request for `path`; none for limits that the tenant does not have."""
    build = _build_anthropic if path.startswith(ANTHROPIC_PATHS) else _build_openai
    headers: Headers = []
    if state.requests is not None:
        headers += build(b"requests", state.requests, now_wall_s)
    if state.tokens is not None:
        headers += build(b"tokens", state.tokens, now_wall_s)
    return headers


def _build_openai(what: bytes, state: WindowState, now_wall_s: float) -> Headers:
    return [
        (b"x-ratelimit-limit-" + what, b"%d" % state.allowed),
        (b"x-ratelimit-remaining-" + what, b"%d" % state.remaining),
        (b"x-ratelimit-reset-" + what, format_duration(state.reset_s)),
    ]


def _build_anthropic(what: bytes, state: WindowState, now_wall_s: float) -> Headers:
    reset = datetime.fromtimestamp(ceil(now_wall_s + state.reset_s), UTC)
    prefix = b"anthropic-ratelimit-" + what
    return [
        (prefix + b"-limit", b"%d" % state.allowed),
        (prefix + b"-remaining", b"%d" % state.remaining),
        (prefix + b"-reset", reset.strftime("%Y-%m-%dT%H:%M:%SZ").encode()),
    ]


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
