"""The endpoints that a gateway's hint names, whatever form it has."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError
from google.protobuf.struct_pb2 import Value

from router.picker.ext_proc_pb2 import ProcessingRequest
from router.picker.messages import read_subset
from router.picker.names import SUBSET, SUBSET_HINT

A, B, C = "10.0.0.1:8000", "10.0.0.2", "[fd00::1]:8000"


def hinted(value: Any) -> ProcessingRequest:
    message = ProcessingRequest()
    hint = message.metadata_context.filter_metadata[SUBSET_HINT]
    hint.fields[SUBSET].CopyFrom(ParseDict(value, Value()))
    return message


def nested(depth: int) -> Any:
    value: Any = A
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ([A, B, C], {A, B, C}),
        (f" {A},{B} , {C},", {A, B, C}),
        ([f"{A}, {B}", C], {A, B, C}),
        ([[A, B], C], {A, B, C}),
        ([[[f"{A},{B}"]], [], [[]], C], {A, B, C}),
        (nested(20), {A}),
        ([A, 7, 0.5, None, True, {"endpoint": B}, {"list": [B]}, "", " "], {A}),
        ([], set()),
        ([[]], set()),
        ("", set()),
        (7, set()),
        (False, set()),
        ({"endpoint": A}, set()),
        (None, None),
    ],
)
def test_a_subset_is_read_in_every_form(value: Any, named: set[str] | None) -> None:
    assert read_subset(hinted(value)) == named


def test_without_a_hint_all_endpoints_are_allowed() -> None:
    message = ProcessingRequest()
    assert read_subset(message) is None
    message.metadata_context.filter_metadata[SUBSET_HINT].fields["other"].string_value = A
    assert read_subset(message) is None


def test_no_message_nests_deeper_than_can_be_read() -> None:
    """protobuf refuses it before, which ends the stream."""
    for depth in (1, 40, 45, 60, 1000):
        message = ProcessingRequest()
        value = message.metadata_context.filter_metadata[SUBSET_HINT].fields[SUBSET]
        for _ in range(depth):
            value = value.list_value.values.add()
        value.string_value = A
        raw = message.SerializeToString()
        if depth <= 45:
            assert read_subset(ProcessingRequest.FromString(raw)) == {A}
        else:
            with pytest.raises(DecodeError):
                ProcessingRequest.FromString(raw)
