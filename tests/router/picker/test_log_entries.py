"""What is read of a log entry: a key, how the answer ended, and the counts that are some."""

from __future__ import annotations

import pytest

from router.picker.access_log_pb2 import StreamAccessLogsMessage
from router.picker.answer_log import LoggedEnd
from router.picker.log_entries import MAX_CHARS, read_ends
from router.picker.names import OWN, RECORD
from router.prompt.usage import Usage


def add_entry(message: StreamAccessLogsMessage, key: str | None, details: str = "via_upstream", **usage: float) -> None:
    """Add an entry to a batch; without a key, of a request that no picker has seen."""
    one = message.http_logs.log_entry.add()
    one.response.response_code.value = 200
    one.response.response_code_details = details
    address = one.common_properties.upstream_remote_address.socket_address
    address.address, address.port_value = "10.0.0.1", 8000
    fields = one.common_properties.metadata.filter_metadata[OWN].fields
    if key is not None:
        fields[RECORD].string_value = key
    for name, count in usage.items():
        fields[name].number_value = count


def test_the_ends_of_a_batch_are_read_by_their_keys() -> None:
    batch = StreamAccessLogsMessage()
    add_entry(batch, "a", prompt_tokens=7, completion_tokens=2, cached_tokens=3)
    add_entry(batch, None)
    batch.http_logs.log_entry.add()
    add_entry(batch, "b", "downstream_remote_disconnect")
    assert list(read_ends(batch)) == [
        ("a", LoggedEnd(200, "via_upstream", "10.0.0.1:8000", Usage(7, 3, 2))),
        ("b", LoggedEnd(200, "downstream_remote_disconnect", "10.0.0.1:8000", None)),
    ]


@pytest.mark.parametrize("count", [-1.0, 1e12, float("nan")])
def test_a_count_that_is_none_is_unknown(count: float) -> None:
    batch = StreamAccessLogsMessage()
    add_entry(batch, "a", prompt_tokens=count)
    ((_, end),) = read_ends(batch)
    assert end.usage is None


def test_long_texts_are_cut_and_long_keys_are_nobodys() -> None:
    batch = StreamAccessLogsMessage()
    add_entry(batch, "k" * (MAX_CHARS + 1))
    add_entry(batch, "k" * MAX_CHARS, "via_upstream" + "x" * 100_000)
    ((key, end),) = read_ends(batch)
    assert key == "k" * MAX_CHARS
    assert len(end.details) == MAX_CHARS
