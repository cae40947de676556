"""Values of command-line options, from text: `4,8,32`, `off,150000:2000000`, `50:250`.

Each error names the option, the text found and what is expected.
"""

from __future__ import annotations

from typing import NamedTuple

from router.errors import ConfigError
from router.testbed.simulator.scenario import EventLags

OFF = "off"


class MemoryOption(NamedTuple):
    """A pool or a host's memory."""

    tokens_per_s: float  # of one instance's link
    tokens: int | None  # its size; None: not given


def parse_list(option: str, text: str) -> list[str]:
    """Return the parts between commas, each once, in order. Raises ConfigError when there are none."""
    found = [part.strip() for part in text.split(",") if part.strip()]
    if not found:
        raise ConfigError(f"{option}: no value found, expected one or several with commas between them")
    return list(dict.fromkeys(found))


def parse_whole(option: str, text: str, least: int = 1) -> int:
    """Return a whole number from `least` on. Raises ConfigError."""
    value = parse_number(option, text)
    if value != int(value) or value < least:
        raise ConfigError(f"{option}: found {text!r}, expected a whole number from {least} on")
    return int(value)


def parse_number(option: str, text: str) -> float:
    """Return a number above 0, such as `2e6` or `150_000`. Raises ConfigError."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ConfigError(f"{option}: found {text!r}, expected a number above 0")
    return value


def parse_memory(option: str, text: str) -> MemoryOption | None:
    """Return the value of `TOKENS_PER_S` or `TOKENS_PER_S:TOKENS`; None for `off`. Raises ConfigError."""
    if text == OFF:
        return None
    rate, colon, size = text.partition(":")
    return MemoryOption(parse_number(option, rate), parse_whole(option, size) if colon else None)


def parse_lags(text: str) -> EventLags:
    """Return the value of `EVENTS:POLLS` in milliseconds, where EVENTS may be 0. Raises ConfigError."""
    events, colon, polls = text.partition(":")
    try:
        found = EventLags(float(events) / 1e3, float(polls) / 1e3)
    except ValueError:
        found = EventLags(-1.0)
    if not colon or not 0 <= found.events_s < float("inf") or not 0 < found.metrics_s < float("inf"):
        raise ConfigError(
            f"--lags: found {text!r}, expected two numbers in milliseconds: from a cached block to the router's index, "
            "and between two polls of an instance, as 50:250"
        )
    return found
