"""Reads the entries of a gateway's access log: the answer of each entry, and how that answer ended."""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.struct_pb2 import Struct

from router.picker.access_log_pb2 import HTTPAccessLogEntry, StreamAccessLogsMessage
from router.picker.answer_log import LoggedEnd
from router.picker.names import OWN, RECORD
from router.prompt.usage import MAX_TOKENS, Usage

MAX_CHARS = 256  # of a text; keys and Envoy's own texts are shorter


def read_ends(message: StreamAccessLogsMessage) -> Iterator[tuple[str, LoggedEnd]]:
    """Yield the key of each answer in a batch, and the answer's end. Entries of other requests are ignored."""
    for entry in message.http_logs.log_entry:
        metadata = entry.common_properties.metadata.filter_metadata.get(OWN)
        if metadata is not None and RECORD in metadata.fields:
            key = metadata.fields[RECORD].string_value
            if len(key) <= MAX_CHARS:
                yield key, _read_end(entry, metadata)


def _read_end(entry: HTTPAccessLogEntry, metadata: Struct) -> LoggedEnd:
    common, response = entry.common_properties, entry.response
    address = common.upstream_remote_address.socket_address
    served = f"{address.address[:MAX_CHARS]}:{address.port_value}" if address.port_value else None
    counts = [_read_count(metadata, name) for name in ("prompt_tokens", "cached_tokens", "completion_tokens")]
    usage = None if counts == [None, None, None] else Usage(*counts)
    return LoggedEnd(response.response_code.value, response.response_code_details[:MAX_CHARS], served, usage)


def _read_count(metadata: Struct, name: str) -> int | None:
    if name not in metadata.fields or metadata.fields[name].WhichOneof("kind") != "number_value":
        return None
    value = metadata.fields[name].number_value
    return int(value) if 0 <= value <= MAX_TOKENS else None
