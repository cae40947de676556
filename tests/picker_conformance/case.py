"""A case of the suite: one clause of the protocol in a sentence, what is sent, what is expected, and its check.

Numbers are never reused: a case that is dropped leaves a gap, and a case whose meaning changes gets a new number.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple

from tests.picker_conformance.peer import PickerPeer

# Sources of clauses.
EPP = "endpoint picker protocol"  # GIE docs/proposals/004-endpoint-picker-protocol, 1.0.0
ENVOY = "Envoy ext_proc"  # external_processor.proto and processing_mode.proto
HEALTH = "gRPC health checking"
LLMD = "llm-d"  # its hermetic tests, and what gateways built for it count on
LWEPP = "GIE lwepp"  # the picker of GIE's conformance tests for gateways


class RequirementLevel(StrEnum):
    """Says how binding a clause is, as in RFC 2119. Clauses that only Envoy or llm-d states, and that a gateway can do
    without, are SHOULD or MAY.
    """

    MUST = "MUST"
    SHOULD = "SHOULD"
    MAY = "MAY"


MUST, SHOULD, MAY = RequirementLevel


class CaseResult(NamedTuple):
    """`received` says what the picker did, or why the case was skipped."""

    result: Literal["pass", "fail", "skip"]
    received: str


CaseCheck = Callable[[PickerPeer], Awaitable[CaseResult]]


@dataclass(frozen=True)
class ConformanceCase:
    id: str
    level: RequirementLevel
    clause: str
    sent: str
    expected: str
    source: str
    needs_endpoint: bool  # it is skipped where the picker has no endpoint to choose
    check: CaseCheck


def conformance_case(
    number: int,
    level: RequirementLevel,
    clause: str,
    *,
    sent: str,
    expected: str,
    source: str,
    needs_endpoint: bool = True,
) -> Callable[[CaseCheck], ConformanceCase]:
    """Return a decorator that makes a case of its check."""

    def make(check: CaseCheck) -> ConformanceCase:
        return ConformanceCase(f"EPP-{number}", level, clause, sent, expected, source, needs_endpoint, check)

    return make


def judge(passed: bool, received: str) -> CaseResult:
    """Return the result of a case that was decided."""
    return CaseResult("pass" if passed else "fail", received)


def skip(reason: str) -> CaseResult:
    """Return the result of a case that could not be decided."""
    return CaseResult("skip", reason)


def judge_all(findings: Iterable[CaseResult]) -> CaseResult:
    """Return the first failure, or a pass that says what all received."""
    results = list(findings)
    failed = next((one for one in results if one.result == "fail"), None)
    return failed or CaseResult("pass", "; ".join(dict.fromkeys(one.received for one in results)))
