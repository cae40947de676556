"""Joins what a gateway's access log says with the answers that it carries out by itself (the thin profile).

Envoy sends a log entry when an exchange has ended, in batches, on one stream for each of its workers. An answer is
joined by the key that its choice had in the metadata. One whose entry does not come is given up: when its gateway has
had no log stream for a while (it ended, or sends no logs), and after a bound in any case.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from google.protobuf.struct_pb2 import Struct

from router.picker.access_log_pb2 import HTTPAccessLogEntry, StreamAccessLogsMessage
from router.picker.names import OWN, RECORD
from router.prompt.usage import MAX_TOKENS, Usage

UNFOLLOWED_S = 30.0  # without a log stream of the gateway
LONGEST_S = 6 * 3600.0


class LoggedEnd(NamedTuple):
    """An answer's end. `details` are Envoy's response code details; `served` and `usage` None where unknown."""

    status: int
    details: str
    served: str | None
    usage: Usage | None


class OpenAnswer:
    """An answer that a gateway brings: `end` is known when its log entry has come. Used with `with`."""

    __slots__ = ("_log", "end", "gateway", "key", "left_s")

    def __init__(self, log: AnswerLog, key: str, gateway: str) -> None:
        self._log = log
        self.key = key
        self.gateway = gateway
        self.end: asyncio.Future[LoggedEnd | None] = asyncio.get_running_loop().create_future()
        self.left_s: float | None = None  # since when only the log can tell the end

    def __enter__(self) -> OpenAnswer:
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close(self.key)

    async def wait(self) -> LoggedEnd | None:
        """Return how the answer ended; None when that is not going to be known."""
        self.left_s = self._log.now()
        return await self.end


class AnswerLog:
    """The open answers. `now` is a monotonic clock, seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self._open: dict[str, OpenAnswer] = {}
        self._streams: Counter[str] = Counter()  # by gateway
        self._lost_s: dict[str, float] = {}  # when a gateway's last stream ended

    def __len__(self) -> int:
        return len(self._open)

    def follows(self, gateway: str) -> bool:
        """Return whether this gateway sends logs now."""
        return self._streams[gateway] > 0

    def open(self, key: str, gateway: str) -> OpenAnswer:
        """Return an answer that entries are joined with from now on."""
        self._open[key] = answer = OpenAnswer(self, key, gateway)
        return answer

    def close(self, key: str) -> None:
        self._open.pop(key, None)

    def on_stream_begin(self, gateway: str) -> None:
        self._streams[gateway] += 1
        self._lost_s.pop(gateway, None)

    def on_stream_end(self, gateway: str) -> None:
        self._streams[gateway] -= 1
        if not self._streams[gateway]:
            del self._streams[gateway]
            self._lost_s[gateway] = self.now()

    def take(self, message: StreamAccessLogsMessage) -> None:
        """Take a batch of entries. Those of other requests are ignored."""
        for entry in message.http_logs.log_entry:
            metadata = entry.common_properties.metadata.filter_metadata.get(OWN)
            if metadata is not None and RECORD in metadata.fields:
                answer = self._open.get(metadata.fields[RECORD].string_value)
                if answer is not None and not answer.end.done():
                    answer.end.set_result(_read_end(entry, metadata))

    def expire(self) -> None:
        """Give up the answers whose entries do not come any more; call it every second or so."""
        now = self.now()
        for answer in self._open.values():
            if (followed_s := answer.left_s) is None or answer.end.done():
                continue
            longest_s = now - followed_s
            if (lost_s := self._lost_s.get(answer.gateway)) is not None:
                followed_s = max(followed_s, lost_s)
            lost = answer.gateway not in self._streams and now - followed_s > UNFOLLOWED_S
            if lost or longest_s > LONGEST_S:
                answer.end.set_result(None)
        for gateway in [name for name, lost_s in self._lost_s.items() if now - lost_s > 2 * UNFOLLOWED_S]:
            del self._lost_s[gateway]


def _read_end(entry: HTTPAccessLogEntry, metadata: Struct) -> LoggedEnd:
    common = entry.common_properties
    address = common.upstream_remote_address.socket_address
    served = f"{address.address}:{address.port_value}" if address.port_value else None
    counts = [_read_count(metadata, name) for name in ("prompt_tokens", "cached_tokens", "completion_tokens")]
    usage = None if counts == [None, None, None] else Usage(*counts)
    return LoggedEnd(entry.response.response_code.value, entry.response.response_code_details, served, usage)


def _read_count(metadata: Struct, name: str) -> int | None:
    if name not in metadata.fields or metadata.fields[name].WhichOneof("kind") != "number_value":
        return None
    value = metadata.fields[name].number_value
    return int(value) if 0 <= value <= MAX_TOKENS else None
