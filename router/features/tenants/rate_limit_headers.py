"""Headers that report to a client how much of its limits per minute is left, in the format of the API that it uses.

OpenAI's headers have the remaining number and the time until all of the limit is available again (`59.95s`);
Anthropic's, on `/v1/messages`, have the moment instead of the time.
"""

from __future__ import annotations

from datetime import UTC, datetime
from math import ceil
from typing import Final

from router.features.tenants.ledger import LimitState, WindowState
from router.request.error_body import ANTHROPIC_PATHS

MINUTE_MS: Final = 60_000


def render_rate_limits(state: LimitState, path: str, now_wall_s: float) -> bytes:
    """Return the header lines of an answer to a request for `path`; no lines for limits that the tenant lacks."""
    render = _render_anthropic if path.startswith(ANTHROPIC_PATHS) else _render_openai
    lines = ""
    if state.requests is not None:
        lines = render("requests", state.requests, now_wall_s)
    if state.tokens is not None:
        lines += render("tokens", state.tokens, now_wall_s)
    return lines.encode()


def _render_openai(what: str, state: WindowState, now_wall_s: float) -> str:
    reset = format_duration(state.reset_s)
    return (
        f"x-ratelimit-limit-{what}: {state.allowed}\r\nx-ratelimit-remaining-{what}: {state.remaining}\r\n"
        f"x-ratelimit-reset-{what}: {reset}\r\n"
    )


def _render_anthropic(what: str, state: WindowState, now_wall_s: float) -> str:
    reset = datetime.fromtimestamp(ceil(now_wall_s + state.reset_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    prefix = f"anthropic-ratelimit-{what}"
    return f"{prefix}-limit: {state.allowed}\r\n{prefix}-remaining: {state.remaining}\r\n{prefix}-reset: {reset}\r\n"


def format_duration(seconds: float) -> str:
    """Return a duration as OpenAI writes it (Go's format), in whole milliseconds: `0s`, `120ms`, `6.5s`, `1m0s`."""
    ms = ceil(seconds * 1e3)
    if ms == MINUTE_MS:
        return "1m0s"  # so for every request that was charged just now
    if 0 < ms < 1_000:
        return f"{ms}ms"
    minutes, rest_ms = divmod(ms, MINUTE_MS)
    text = f"{rest_ms // 1000}.{rest_ms % 1000:03d}".rstrip("0").rstrip(".") + "s"
    return f"{minutes}m{text}" if minutes else text
