"""The report of a run: versions, what the picker showed, and what each case received. Its JSON form is versioned."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

REPORT_FORMAT = 1  # changes when a field of the JSON form is renamed or changes its meaning
PROTOCOL_VERSION = "1.0.0"  # of the endpoint picker protocol
SUITE_VERSION = "1.0.0"  # changes with the cases


@dataclass(frozen=True)
class CaseReport:
    id: str
    level: str
    clause: str
    source: str
    sent: str
    expected: str
    result: Literal["pass", "fail", "skip"]
    received: str


@dataclass
class ConformanceReport:
    """`endpoints` are those that the picker chose when it was asked, and those that were named beforehand."""

    picker: str
    tls: bool
    at: str  # UTC, ISO 8601
    model: str
    endpoints: tuple[str, ...]
    format: int = REPORT_FORMAT
    protocol: str = PROTOCOL_VERSION
    suite: str = SUITE_VERSION
    cases: list[CaseReport] = field(default_factory=list)

    def count(self) -> dict[str, dict[str, int]]:
        """Return how many cases of each level passed, failed and were skipped."""
        counted = Counter((case.level, case.result) for case in self.cases)
        levels = dict.fromkeys(case.level for case in self.cases)
        return {level: {result: counted[level, result] for result in ("pass", "fail", "skip")} for level in levels}

    @property
    def conforms(self) -> bool:
        """Whether no MUST failed, and one at least was decided."""
        musts = [case.result for case in self.cases if case.level == "MUST"]
        return "fail" not in musts and "pass" in musts

    def as_json(self) -> dict[str, object]:
        """Return the report as JSON values, with the counts and the verdict in it."""
        head = {
            name: getattr(self, name)
            for name in ("format", "protocol", "suite", "at", "picker", "tls", "model", "endpoints")
        }
        return {**head, "conforms": self.conforms, "counts": self.count(), "cases": self.cases}
