"""The checks, most important first, and one examination: gather facts, run the checks, sort the findings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from router.clock import Clock
from router.operate.doctor import (
    alerts,
    engines,
    events,
    hits,
    limits,
    pairs,
    policies,
    pool,
    routers,
    security,
    tokens,
)
from router.operate.doctor.check import Check
from router.operate.doctor.finding import FleetFinding, MergedFinding, merge
from router.operate.doctor.gather import DoctorOptions, gather_facts
from router.operate.doctor.subject import Subject

CHECKS: tuple[Check, ...] = (
    *routers.CHECKS,
    *engines.CHECKS,
    *events.CHECKS,
    *tokens.CHECKS,
    *hits.CHECKS,
    *pool.CHECKS,
    *pairs.CHECKS,
    *policies.CHECKS,
    *limits.CHECKS,
    *security.CHECKS,
    *alerts.CHECKS,
)
UNFINISHED = "unfinished"  # in place of a check's name: a query was not answered in time


class Examination(NamedTuple):
    """Findings of one run."""

    findings: list[MergedFinding]
    checks: tuple[str, ...]  # the names of those that ran
    engines: int
    routers: int
    text: str  # of the main file, "" without one
    took_s: float

    @property
    def faults(self) -> int:
        """Number of findings that are faults."""
        return sum(one.finding.severity == "fault" for one in self.findings)


async def examine(options: DoctorOptions, clock: Clock) -> Examination:
    """Gather the facts and run all checks. Raises ConfigError for a configuration that cannot be read."""
    begun_s = clock.now()
    subject = await gather_facts(options, clock)
    found = merge(run_checks(subject), [*(check.name for check in CHECKS), UNFINISHED])
    took_s = clock.now() - begun_s
    ran = tuple(check.name for check in CHECKS if can_run(check, subject))
    return Examination(found, ran, len(subject.engines), len(subject.routers), subject.text, took_s)


def run_checks(subject: Subject) -> Iterator[FleetFinding]:
    """Yield the findings of every check, and what could not be examined."""
    for check in CHECKS:
        if can_run(check, subject):
            for finding in check.run(subject):
                yield finding._replace(check=check.name)
    for name in subject.unfinished:
        why, change = "nothing is known of it beyond what stands here", "run the doctor again; if it stays, look there"
        yield FleetFinding("unchecked", "not everything was answered in time", why, change, (name,), check=UNFINISHED)


def can_run(check: Check, subject: Subject) -> bool:
    """Return whether the examination includes the facts that the check needs."""
    match check.needs:
        case "configuration":
            return subject.config is not None
        case "router":
            return bool(subject.routers)
        case "prompts":
            return bool(subject.engines) and not subject.passive
        case "engines":
            return bool(subject.engines) or subject.config is not None
        case _:
            return True
