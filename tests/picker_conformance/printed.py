"""The report on a picker as lines and a table for the terminal."""

from __future__ import annotations

from router.cli.terminal.output import Grid, GridEntry, make_grid, versions
from tests.picker_conformance.report import CaseReport, ConformanceReport

COLOURS = {"pass": "green", "skip": None}
FAILED_COLOURS = {"MUST": "red"}


def head_lines(report: ConformanceReport) -> list[str]:
    """Return what was asked, and in which version of suite and protocol."""
    return [
        f"Endpoint picker protocol {report.protocol}, suite {report.suite} of {versions()}",
        f"{report.at}  picker {report.picker} ({'TLS' if report.tls else 'plaintext'}), model {report.model}, "
        f"endpoints: {', '.join(report.endpoints) or 'none'}",
    ]


def result_table(report: ConformanceReport) -> Grid:
    """Return a row for each case."""
    rows: list[list[str | GridEntry]] = [
        [case.id, case.level, _result(case), case.clause, case.received] for case in report.cases
    ]
    return make_grid("", ("case", "level", "result", "clause", "received, or why skipped"), rows, labels=5)


def _result(case: CaseReport) -> GridEntry:
    if case.result == "fail":
        return GridEntry(case.result, colour=FAILED_COLOURS.get(case.level, "yellow"))
    return GridEntry(case.result, colour=COLOURS[case.result])


def tail_lines(report: ConformanceReport) -> list[str]:
    """Return the counts of each level and the verdict."""
    lines = [
        f"{level:6} {counts['pass']:2} passed, {counts['fail']} failed, {counts['skip']} skipped"
        for level, counts in report.count().items()
    ]
    verdict = "The picker conforms: no MUST failed." if report.conforms else "The picker does not conform."
    return [*lines, verdict]
