from __future__ import annotations

import pytest

from router.features.tenants.ledger import LimitState, WindowState
from router.features.tenants.rate_limit_headers import format_duration, render_rate_limits
from router.proxy.headers import split_lines

REQUESTS, TOKENS = WindowState(60, 12, 59.9), WindowState(10_000, 0, 3.25)


def test_openai_clients_are_told_in_which_time() -> None:
    assert split_lines(render_rate_limits(LimitState(REQUESTS, TOKENS), "/v1/chat/completions", 0.0)) == [
        (b"x-ratelimit-limit-requests", b"60"),
        (b"x-ratelimit-remaining-requests", b"12"),
        (b"x-ratelimit-reset-requests", b"59.9s"),
        (b"x-ratelimit-limit-tokens", b"10000"),
        (b"x-ratelimit-remaining-tokens", b"0"),
        (b"x-ratelimit-reset-tokens", b"3.25s"),
    ]


def test_anthropic_clients_are_told_when() -> None:
    assert split_lines(render_rate_limits(LimitState(None, TOKENS), "/v1/messages", 1_700_000_000.0)) == [
        (b"anthropic-ratelimit-tokens-limit", b"10000"),
        (b"anthropic-ratelimit-tokens-remaining", b"0"),
        (b"anthropic-ratelimit-tokens-reset", b"2023-11-14T22:13:24Z"),
    ]
    assert render_rate_limits(LimitState(None, None), "/v1/messages", 0.0) == b""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0s"),
        (0.0001, "1ms"),
        (0.12, "120ms"),
        (1.0, "1s"),
        (6.5, "6.5s"),
        (60.0, "1m0s"),
        (61.25, "1m1.25s"),
    ],
)
def test_durations_are_written_as_by_go(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
