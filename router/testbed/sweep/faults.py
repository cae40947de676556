"""Troubles by name or file: from `configs/troubles/` to what a simulation suffers, if its fleet can."""

from __future__ import annotations

from math import inf
from pathlib import Path

from router.config.lookup import SHIPPED, load_each
from router.config.reader import read_trouble_file
from router.config.sections.faults import FaultWindow, TroubleFile
from router.errors import ConfigError
from router.testbed.simulator.scenario import InstanceFailure, Trouble
from router.testbed.sweep import option_values
from router.testbed.sweep.option_values import OFF

FOLDER = SHIPPED / "troubles"


def load_troubles(given: str, folder: Path | None = None) -> dict[str, Trouble]:
    """As `--trouble` has them, by name: `off` first, then the others in the order given.

    `folder`: where names are looked up; None: the one that comes with the project. Raises ConfigError with every
    problem, one a line.
    """
    wanted = option_values.parse_list("--trouble", given)
    troubles = [one for one in wanted if one != OFF]
    found = load_each("trouble", troubles, lambda file: _made(read_trouble_file(file)), folder or FOLDER)
    if OFF in found:
        raise ConfigError(f'--trouble: "{OFF}" means that nothing goes wrong; rename the file')
    return found if OFF not in wanted else {OFF: Trouble(), **found}


def check_possible(name: str, trouble: Trouble, *, instances: int, prefills: int, pooled: bool) -> None:
    """Raises ConfigError for what cannot happen to the smallest fleet, or would leave nobody in it to answer."""
    hit = max((failure.instance for failure in trouble.failures), default=0)
    if hit >= instances:
        raise ConfigError(
            f"--trouble: {name}: there is no instance {hit} among {instances}, which have numbers from 0 to "
            f"{instances - 1}; name another one, or give more --instances"
        )
    if trouble.pool_away and not pooled:
        raise ConfigError(f"--trouble: {name}: the pool is away, but there is none; give one with --pool")
    gone = {failure.instance for failure in trouble.failures if failure.kind == "down" and failure.until_s == inf}
    if gone.issuperset(range(prefills, instances)):
        raise ConfigError(
            f"--trouble: {name}: instances {prefills} to {instances - 1} die for good and nobody is left to answer; "
            "let one come back (until_s), or give more --instances"
        )


def _made(read: TroubleFile) -> Trouble:
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
