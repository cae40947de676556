"""Policies, profiles and troubles for a simulation, by name or file: from YAML to the values that it computes with.

Names are those of the files that ship with Warmroute, or of another folder; a path with a YAML suffix is a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from math import inf
from pathlib import Path

from router.config.lookup import SHIPPED, list_files, load_each, resolve_file
from router.config.reader import read_policy_file, read_profile_file, read_trouble_file
from router.config.schema import PolicyConfig
from router.config.sections.simulation import FaultWindow, TroubleFile
from router.errors import ConfigError
from router.scheduling.policy.policy import build_policies
from router.testbed.engine_profile import EngineProfile
from router.testbed.simulator.scenario import InstanceFailure, Trouble
from router.testbed.sweep.option_values import OFF, parse_list

POLICIES, PROFILES, TROUBLES = (SHIPPED / kind for kind in ("policies", "profiles", "troubles"))
ALL = "all"


def load_policies(names: Sequence[str], folder: Path = POLICIES) -> dict[str, PolicyConfig]:
    """Return policies by name, in the given order; a text may hold several with commas, `all` means all of `folder`.

    Each is built once, so that a scorer's wrong parameter fails before the first simulation. Raises ConfigError with
    one line per problem.
    """
    parts = [part for text in names for part in text.split(",")]
    found = load_each("policy", list_files(folder) if ALL in parts else parts, read_policy_file, folder)
    build_policies(found)
    return found


def load_profile(name: str, folder: Path = PROFILES) -> EngineProfile:
    """Return the profile `name` of `folder`, or of this YAML file; the sources of its numbers are left out.

    Raises ConfigError with the file and line of a problem, or the nearest known name.
    """
    file = resolve_file("profile", name, folder)
    read = read_profile_file(file)
    numbers = {field.name: getattr(read, field.name).value for field in fields(EngineProfile) if field.name != "name"}
    return EngineProfile(name=file.stem, **numbers)


def load_troubles(text: str, folder: Path = TROUBLES) -> dict[str, Trouble]:
    """Return the troubles of `--trouble` by name: `off` first if it is among them, then the others in their order.

    Raises ConfigError with one line per problem.
    """
    names = parse_list("--trouble", text)
    found = load_each(
        "trouble", [one for one in names if one != OFF], lambda file: _trouble(read_trouble_file(file)), folder
    )
    if OFF in found:
        raise ConfigError(f'--trouble: "{OFF}" means that nothing fails; rename the file')
    return found if OFF not in names else {OFF: Trouble(), **found}


def check_possible(name: str, trouble: Trouble, *, instances: int, prefills: int, pooled: bool) -> None:
    """Raise ConfigError when trouble `name` cannot happen to the smallest fleet, or leaves no instance to answer.

    `prefills` of `instances` only prefill; `pooled`: the fleet has a shared pool.
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
