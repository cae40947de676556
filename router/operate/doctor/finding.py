"""A finding of a check: the fault, why it matters, and the exact line to change.

A check yields plain findings, one for each engine or key. `merge` joins findings that have the same texts for
several engines, and sorts the result by severity, faults first, then in the order of the checks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from router.config.yaml_source import YamlPath
from router.errors import quote_name
from router.fleet.silent_fault import SilentFault

Severity = Literal["fault", "warning", "note", "unchecked"]
SEVERITIES: tuple[Severity, ...] = ("fault", "warning", "unchecked", "note")
"""The severities, in the order in which findings are printed.

    fault       requests fail, or hits are lost, now
    warning     the fleet works, but not as it should, or not for long
    unchecked   something could not be examined, so it may be wrong
    note        a fact for the reader
"""
NAMED = 3  # most engines that a finding names; further engines are only counted


class Place(NamedTuple):
    """A line of the configuration."""

    file: str
    line: int
    key: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.key}"


class Edit(NamedTuple):
    """A change of the main file that resolves the finding: the new value of a key, which is added if missing."""

    path: YamlPath
    value: Any


class FleetFinding(NamedTuple):
    """One thing that is wrong. Texts are one line each."""

    severity: Severity
    what: str  # what was found, with a verb; `at` is printed before it
    why: str  # the consequence
    change: str  # what to write where: the value of `place`, or flags of an engine's command line
    at: tuple[str, ...] = ()  # the engines, routers or masters concerned; empty: the configuration
    place: Place | None = None  # the line to change; None: it is not in the configuration
    edit: Edit | None = None
    check: str = ""  # the name of the check, set by the suite

    @property
    def where(self) -> str:
        """The names in `at`, as text; empty for the configuration."""
        names = ", ".join(quote_name(name) for name in self.at[:NAMED])
        return names if len(self.at) <= NAMED else f"{names} and {len(self.at) - NAMED} more"


def report(
    fault: SilentFault, at: tuple[str, ...], place: Place | None = None, edit: Edit | None = None
) -> FleetFinding:
    """Return the finding for a fault that running routers know, too."""
    return FleetFinding("fault", fault.what, fault.why, fault.change, at, place, edit)


class MergedFinding(NamedTuple):
    """Findings with the same texts joined into one, with the lines and edits of all of them."""

    finding: FleetFinding
    places: tuple[Place, ...]
    edits: tuple[Edit, ...]


def merge(findings: Iterable[FleetFinding], order: Sequence[str]) -> list[MergedFinding]:
    """Join the findings of one check that have the same texts, and sort the result by severity, then by `order`,
    the names of the checks.
    """
    groups: dict[tuple[str, ...], list[FleetFinding]] = {}
    for one in findings:
        groups.setdefault((one.check, one.severity, one.what, one.why, one.change), []).append(one)
    merged = [_join(group) for group in groups.values()]
    return sorted(merged, key=lambda m: (SEVERITIES.index(m.finding.severity), order.index(m.finding.check)))


def _join(group: Sequence[FleetFinding]) -> MergedFinding:
    at = tuple(dict.fromkeys(name for one in group for name in one.at))
    places = tuple(dict.fromkeys(one.place for one in group if one.place is not None))
    edits = tuple(one.edit for one in group if one.edit is not None)
    return MergedFinding(group[0]._replace(at=at), places, edits)
