"""What options of `warmroute simulate` say, from text to values: `4,8,32`, `off,150000:2000000`, `50:250`.

Each refusal names the option, what stands there and what is wanted.
"""

from __future__ import annotations

from typing import NamedTuple

from router.errors import ConfigError
from router.testbed.simulator.scenario import EventLags

OFF = "off"


class MemoryOption(NamedTuple):
    """A pool or a host's memory as it is written."""

    tokens_per_s: float  # of one instance's link
    tokens: int | None  # room in it; None: not said


def parse_list(option: str, text: str) -> list[str]:
    """Of a list with commas, each once, in order."""
    found = [part.strip() for part in text.split(",") if part.strip()]
    if not found:
        raise ConfigError(f"{option}: found nothing, wanted one or several values with commas between them")
    return list(dict.fromkeys(found))


def parse_whole(option: str, text: str, least: int = 1) -> int:
    value = parse_number(option, text)
    if value != int(value) or value < least:
        raise ConfigError(f"{option}: found {text!r}, wanted a whole number from {least} on")
    return int(value)


def parse_number(option: str, text: str) -> float:
    """Above 0. `2e6` and `150_000` are numbers."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ConfigError(f"{option}: found {text!r}, wanted a number above 0")
    return value


def parse_memory(option: str, text: str) -> MemoryOption | None:
    """`off`, or `TOKENS_PER_S`, or `TOKENS_PER_S:TOKENS`."""
    if text == OFF:
        return None
    rate, colon, room = text.partition(":")
    return MemoryOption(parse_number(option, rate), parse_whole(option, room) if colon else None)


def parse_lags(text: str) -> EventLags:
    """`EVENTS:POLLS`, in milliseconds; 0 is none."""
    events, colon, polls = text.partition(":")
    try:
        found = EventLags(float(events) / 1e3, float(polls) / 1e3)
    except ValueError:
        found = EventLags(-1.0)
    if not colon or not 0 <= found.events_s < float("inf") or not 0 < found.metrics_s < float("inf"):
        raise ConfigError(
            f"--lags: found {text!r}, wanted two numbers in milliseconds: from a cached block to the router's index, "
            "and between two polls of an instance, as 50:250"
        )
    return found
