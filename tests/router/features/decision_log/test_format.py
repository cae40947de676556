"""What the lines say: read by this version whatever wrote them, and good for building policies again."""

from __future__ import annotations

import json

import msgspec
import pytest

from router.config import schema
from router.features.decision_log.codec import RecordEncoder
from router.features.decision_log.format import LoggedPolicy, decode
from router.scheduling.policy.policy import build_policy, compute_digest, fallback_policy
from router.scheduling.policy.record import Record
from tests.router.telemetry.records import a_record


def first_line(record: Record) -> LoggedPolicy:
    read = decode(RecordEncoder(1).encode_record(record).splitlines()[0]).policy
    assert read is not None
    return read


def test_a_policy_can_be_built_again_from_its_line() -> None:
    spec = schema.PolicyConfig.model_validate(
        {
            "filters": [{"name": "max_waiting", "waiting": 4}],
            "scorers": [{"name": "queue_depth", "weight": 2.5}],
            "prefill": {"scorers": [{"name": "least_requests"}], "picker": {"name": "softmax", "temperature": 0.5}},
            "prefill_from_tokens": 77,
        }
    )
    read = first_line(a_record(policy=build_policy("both", spec)))
    assert read.policy == spec
    assert compute_digest(read.policy) == read.digest


def test_a_policy_without_a_file_has_a_line_too() -> None:
    read = first_line(a_record(policy=fallback_policy()))
    assert (read.name, read.digest, read.spec, read.policy) == ("fallback", "by hand", None, None)


def test_fields_and_lines_of_a_later_version_are_skipped() -> None:
    line = RecordEncoder(1).encode_record(a_record(policy=None))
    newer = json.loads(line)
    newer["record"]["mood"] = "good"
    assert decode(json.dumps(newer).encode()).record == decode(line).record
    unknown = decode(b'{"weather": {"rain": true}}')
    assert (unknown.file, unknown.policy, unknown.record) == (None, None, None)
    with pytest.raises(msgspec.ValidationError):
        decode(b'{"record": {"id": 7}}')
