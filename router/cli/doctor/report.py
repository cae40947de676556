"""The doctor's findings, worst first, as text (three lines each, one line for a note) and as JSON values."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from router.operate.doctor.finding import MergedFinding, Severity
from router.operate.doctor.suite import Examination

COLOURS: dict[Severity, str] = {"fault": "bold red", "warning": "yellow", "unchecked": "magenta", "note": "dim"}
INDENT = 11
PLACES = 3  # most lines of the configuration that a finding names; further lines are only counted


def print_report(console: Console, examination: Examination) -> None:
    """Print every finding, and a summary line."""
    for merged in examination.findings:
        for line in _lines(merged):
            console.print(line, soft_wrap=True)
    console.print(Text(_summary(examination), "bold red" if examination.faults else "bold green"), soft_wrap=True)


def _lines(merged: MergedFinding) -> list[Text]:
    finding = merged.finding
    subject = f"{finding.where}: " if finding.at else ""
    head = Text(f"{finding.severity.upper():<{INDENT}}", COLOURS[finding.severity])
    head.append(f"{subject}{finding.what}", "bold")
    head.append(f"  [{finding.check}]", "dim")
    if finding.severity == "note":
        return [head]
    why = Text(f"{'why':>{INDENT - 2}}  ", "dim").append(finding.why, "not dim")
    fix = Text(f"{'change':>{INDENT - 2}}  ", "dim").append(_change(merged), "not dim")
    return [head, why, fix]


def _change(merged: MergedFinding) -> str:
    places = [f"{place.file}:{place.line}" for place in merged.places]
    if not places:
        return merged.finding.change
    more = "" if len(places) <= PLACES else f" and {len(places) - PLACES} more"
    return f"{', '.join(places[:PLACES])}{more}  {merged.finding.change}"


def _summary(examination: Examination) -> str:
    counts = dict.fromkeys(COLOURS, 0)
    for one in examination.findings:
        counts[one.finding.severity] += 1
    subjects = {"check": len(examination.checks), "engine": examination.engines, "router": examination.routers}
    looked = ", ".join(f"{count} {subject}{'' if count == 1 else 's'}" for subject, count in subjects.items())
    nothing = examination.engines == examination.routers == 0
    best = "nothing wrong in the file; no engine and no router was examined" if nothing else "healthy"
    found = ", ".join(f"{n} {_name(severity, n)}" for severity, n in counts.items() if n) or best
    return f"{found}  ({looked}, {examination.took_s:.1f} s)"


def _name(severity: Severity, count: int) -> str:
    plural = {"fault": "faults", "warning": "warnings", "unchecked": "not examined", "note": "notes"}
    return "not examined" if severity == "unchecked" else plural[severity] if count != 1 else severity


def to_json(examination: Examination) -> dict[str, Any]:
    """Return the examination as JSON types."""
    return {
        "healthy": examination.faults == 0,
        "findings": [_to_json(one) for one in examination.findings],
        "checks": list(examination.checks),
        "engines": examination.engines,
        "routers": examination.routers,
        "took_s": round(examination.took_s, 3),
    }


def _to_json(merged: MergedFinding) -> dict[str, Any]:
    finding = merged.finding
    return {
        "check": finding.check,
        "severity": finding.severity,
        "at": list(finding.at),
        "what": finding.what,
        "why": finding.why,
        "change": finding.change,
        "places": [place._asdict() for place in merged.places],
    }
