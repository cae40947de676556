"""Rows of a load, as tests need them: an answer of round figures, a failure, and a load of such."""

from __future__ import annotations

import msgspec

from router.lab.loadgen.load import SentRequest
from router.lab.loadgen.report import LoadReport
from router.lab.workloads.model import Workload

ANSWERED = SentRequest(
    session=1,
    turn=0,
    sent_s=1.0,
    late_s=0.001,
    duration_s=2.0,
    planned_tokens=100,
    planned_output_tokens=10,
    ttft_s=0.2,
    prompt_tokens=110,
    output_tokens=10,
    cached_tokens=44,
    target="a/0",
)


def answered(**changes: object) -> SentRequest:
    return msgspec.structs.replace(ANSWERED, **changes)


def failed(status: int | None, reason: str) -> SentRequest:
    fields = {"session": 9, "turn": 0, "sent_s": 2.0, "late_s": 0.5, "duration_s": 0.1}
    return SentRequest(**fields, planned_tokens=7, planned_output_tokens=7, status=status, failure=reason)  # type: ignore[arg-type]


def loaded(*sent: SentRequest) -> LoadReport:
    workload = Workload("some", 1, ())
    return LoadReport(
        "http://x", "m", workload, "text", 5, concurrency=4, processes=2, tokens_per_word=1.3, requests=list(sent)
    )
