"""Values of command-line options, parsed from text such as `4,8,32` or `50:250`, or read from named files.

Policies, profiles and troubles are files. A name refers to a file that ships with Warmroute or is in another
folder; a path with a YAML suffix is a file itself. Each error names the option, the text found and the expected
form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from math import inf, nan
from pathlib import Path
from typing import NamedTuple

from router.config.lookup import SHIPPED, list_files, load_each, resolve_file
from router.config.reader import read_policy_file, read_profile_file, read_trouble_file
from router.config.schema import PolicyConfig
from router.config.sections.simulation import FaultWindow, TroubleFile
from router.errors import ConfigError
from router.lab.engine_profile import EngineProfile
from router.lab.simulator.scenario import EventLags, InstanceFailure, ReplicaLink, Trouble
from router.scheduling.policy.policy import build_policies

POLICIES, PROFILES, TROUBLES = (SHIPPED / kind for kind in ("policies", "profiles", "troubles"))
ALL = "all"
OFF = "off"


class MemoryOption(NamedTuple):
    """Value of an option for a pool or a host's memory."""

    tokens_per_s: float  # of one instance's link
    tokens: int | None  # size of the memory; None: not given


def parse_list(option: str, text: str) -> list[str]:
    """Return the parts between commas in order, without duplicates. Raises ConfigError if there are none."""
    found = [part.strip() for part in text.split(",") if part.strip()]
    if not found:
        raise ConfigError(f"{option}: found no value, wanted one or several with commas between them")
    return list(dict.fromkeys(found))


def parse_whole(option: str, text: str, least: int = 1) -> int:
    """Return a whole number, at least `least`. Raises ConfigError."""
    value = _read_number(text)
    if not (least <= value < inf and value == int(value)):
        raise ConfigError(f"{option}: found {text!r}, wanted a whole number from {least} on")
    return int(value)


def parse_number(option: str, text: str) -> float:
    """Return a number above 0, such as `2e6` or `150_000`. Raises ConfigError."""
    value = _read_number(text)
    if not 0 < value < inf:
        raise ConfigError(f"{option}: found {text!r}, wanted a number above 0")
    return value


def _read_number(text: str) -> float:
    """Return the number; NaN, which is in no range, for other text."""
    try:
        return float(text)
    except ValueError:
        return nan


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
            f"--lags: found {text!r}, wanted two numbers in milliseconds: from a cached block to the router's index, "
            "and between two polls of an instance, as 50:250"
        )
    return found


def parse_exchange(text: str) -> ReplicaLink | None:
    """Return the value of `DELAY_MS` or `DELAY_MS:LOST_PERCENT`; None for `off`. Raises ConfigError."""
    if text == OFF:
        return None
    delay, _, lost = text.partition(":")
    try:
        found = ReplicaLink(float(delay) / 1e3, float(lost or 0) / 100)
    except ValueError:
        found = ReplicaLink(-1.0)
    if not 0 <= found.delay_s < float("inf") or not 0 <= found.lost < 1:
        raise ConfigError(
            f"--exchange: found {text!r}, wanted off, or the milliseconds that a message takes from one router to "
            "another, with the percentage that is lost if any, as 1 or 20:5"
        )
    return found


def load_policies(names: Sequence[str], folder: Path = POLICIES) -> dict[str, PolicyConfig]:
    """Return policies by name, in the given order. A text may list several with commas; `all`: all of `folder`.

    Each policy is built once, so that a scorer's wrong parameter fails before the first simulation. Raises
    ConfigError with one line per problem.
    """
    parts = [part for text in names for part in text.split(",")]
    found = load_each("policy", list_files(folder) if ALL in parts else parts, read_policy_file, folder)
    build_policies(found)
    return found


def load_profile(name: str, folder: Path = PROFILES) -> EngineProfile:
    """Return profile `name` of `folder`, or of a YAML file, without the sources of its numbers. Raises
    ConfigError.
    """
    file = resolve_file("profile", name, folder)
    read = read_profile_file(file)
    given = {field.name: getattr(read, field.name) for field in fields(EngineProfile) if field.name != "name"}
    return EngineProfile(name=file.stem, **{name: one.value for name, one in given.items() if one is not None})


def load_troubles(text: str, folder: Path = TROUBLES) -> dict[str, Trouble]:
    """Return the troubles of `--trouble` by name, `off` first, then in order. Raises ConfigError, a line each."""
    names = parse_list("--trouble", text)
    found = load_each(
        "trouble", [one for one in names if one != OFF], lambda file: _trouble(read_trouble_file(file)), folder
    )
    if OFF in found:
        raise ConfigError(f'--trouble: "{OFF}" means that nothing fails; rename the file')
    return found if OFF not in names else {OFF: Trouble(), **found}


def check_possible(name: str, trouble: Trouble, *, instances: int, prefills: int, pooled: bool) -> None:
    """Raise ConfigError when trouble `name` cannot happen to the smallest fleet, or leaves no answering instance.

    Of the `instances`, `prefills` only prefill. `pooled`: the fleet has a shared pool.
    """
    highest = max((failure.instance for failure in trouble.failures), default=0)
    if highest >= instances:
        raise ConfigError(
            f"--trouble: {name}: there is no instance {highest} among {instances}, which are numbered from 0 to "
            f"{instances - 1}; name another one, or give more --instances"
        )
    if trouble.pool_away and not pooled:
        raise ConfigError(f"--trouble: {name}: pool_away needs a pool; give one with --pool")
    gone = {failure.instance for failure in trouble.failures if failure.kind == "down" and failure.until_s == inf}
    if gone.issuperset(range(prefills, instances)):
        raise ConfigError(
            f"--trouble: {name}: instances {prefills} to {instances - 1} die for good, which leaves none to answer; "
            "let one come back (until_s), or give more --instances"
        )


def _trouble(read: TroubleFile) -> Trouble:
    down = [InstanceFailure("down", one.instance, *_span(one)) for one in read.down]
    slow = [InstanceFailure("slow", one.instance, *_span(one), factor=one.factor) for one in read.slow]
    return Trouble(
        failures=(*down, *slow),
        events_lost=read.events_lost,
        pool_away=tuple(_span(one) for one in read.pool_away),
        router_starts_s=read.router_starts_s,
    )


def _span(span: FaultWindow) -> tuple[float, float]:
    return span.from_s, inf if span.until_s is None else span.until_s
