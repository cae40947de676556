"""The kept records of all workers of a host, for the worker that serves the admin API, which queries the others.

A worker that has ended, or does not reply in time, is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import msgspec

from router.clock import Clock
from router.control.peers.frames import UNREADABLE
from router.control.peers.parts import Message, Peers
from router.control.peers.queries import PeerQueries
from router.control.record_detail import Others, describe_in_full
from router.scheduling.scheduler import Scheduler
from router.tasks import Tasks
from router.telemetry.recent_records import RecentRecords
from router.telemetry.record_query import RecordQuery
from router.telemetry.request_flow import FlowUpdate, RequestFlow, TargetRequest, list_target_requests
from router.telemetry.shared_prefixes import SharedPrefix, count_prefixes

REPLY_TIMEOUT_S = 2.0

Subject = Literal["record", "records", "flow", "flow_end", "target_requests", "prefixes"]
"""record: one record, by its id and which `Others`; records: the records that match a `RecordQuery`; flow: the
changes of the sums of recent requests since the last query; flow_end: the sums are not needed any more;
target_requests: the last requests of a target; prefixes: the prefixes that recent prompts share.
"""

_encode = msgspec.msgpack.encode
_encode_json = msgspec.json.encode


class RecordsQuery(Message, frozen=True):
    """A query, answered with `RecordsReply` of the same number."""

    number: int
    subject: Subject
    argument: bytes = b""  # JSON


class RecordsReply(Message, frozen=True):
    number: int
    payload: bytes  # empty: nothing was found


class HostRecords:
    """The records of the other workers; `records` are those of this one."""

    messages: ClassVar[Sequence[type[Message]]] = (RecordsQuery, RecordsReply)

    def __init__(self, records: RecentRecords, scheduler: Scheduler, peers: Peers, tasks: Tasks, clock: Clock) -> None:
        self._records = records
        self._scheduler = scheduler
        self._peers = peers
        self._tasks = tasks
        self._clock = clock
        self.queries = PeerQueries[bytes](peers)
        self._flow: RequestFlow | None = None  # None: no live page is open

    # SharedPart

    def start(self, tasks: Tasks) -> None:
        """Do nothing: the only tasks are those that encode replies."""

    def state(self) -> tuple[Message, ...]:
        return ()

    def forget(self, run: str) -> None:
        self.queries.forget(run)

    def apply(self, message: Any, run: str) -> None:
        if isinstance(message, RecordsQuery):
            self._tasks.spawn("records for a peer", self._reply(message, run))
        else:
            self.queries.on_reply(run, message.number, message.payload)

    # queries

    async def find(self, id: str, others: Others) -> dict[str, Any] | None:
        """Return a record from the worker that made it; None if that worker is gone or has dropped the record."""
        owner = [run for run in self._peers.near_runs() if id.startswith(f"{run}-")]
        found = await self._query(owner, "record", _encode_json((id, others)))
        return next((msgspec.json.decode(payload, type=dict[str, Any]) for payload in found.values()), None)

    async def select(self, query: RecordQuery) -> list[bytes]:
        """Return the records that match, at most `query.limit` of each worker, as JSON, unsorted."""
        payloads = await self._query_all("records", _encode_json(query))
        lists = [msgspec.json.decode(payload, type=list[msgspec.Raw]) for payload in payloads.values()]
        return [bytes(record) for records in lists for record in records]

    async def update_flow(self) -> dict[str, FlowUpdate]:
        """Return the changes of each worker's sums of recent requests since the last call, by its run."""
        decode = msgspec.msgpack.Decoder(FlowUpdate).decode
        return {run: decode(payload) for run, payload in (await self._query_all("flow")).items()}

    async def end_flow(self) -> None:
        """Let the workers drop the sums of `update_flow`."""
        await self._query_all("flow_end")

    async def list_target_requests(self, target: str, limit: int) -> list[TargetRequest]:
        """Return the newest `limit` requests of a target from each worker, unsorted."""
        payloads = await self._query_all("target_requests", _encode_json((target, limit)))
        decode = msgspec.msgpack.Decoder(list[TargetRequest]).decode
        return [request for payload in payloads.values() for request in decode(payload)]

    async def count_prefixes(self, block_tokens: Mapping[str, int]) -> list[list[SharedPrefix]]:
        """Return the prefixes that recent prompts share at each worker; see `count_prefixes`."""
        payloads = await self._query_all("prefixes", _encode_json(block_tokens))
        return [msgspec.msgpack.decode(payload, type=list[SharedPrefix]) for payload in payloads.values()]

    async def _query_all(self, subject: Subject, argument: bytes = b"") -> dict[str, bytes]:
        """Return the replies that are not empty, of all workers, by run."""
        return await self._query(self._peers.near_runs(), subject, argument)

    async def _query(self, runs: Sequence[str], subject: Subject, argument: bytes) -> dict[str, bytes]:
        replies = await self.queries.send(runs, lambda number: RecordsQuery(number, subject, argument), REPLY_TIMEOUT_S)
        return {run: reply for run, reply in replies.items() if reply}

    # replies

    async def _reply(self, query: RecordsQuery, run: str) -> None:
        """Reply to a query; with nothing if its argument is unreadable."""
        try:
            payload = await self._encode(query.subject, query.argument)
        except UNREADABLE:
            payload = b""
        self._peers.send_to(run, RecordsReply(query.number, payload))

    async def _encode(self, subject: Subject, argument: bytes) -> bytes:
        match subject:
            case "record":
                return await self._encode_record(*msgspec.json.decode(argument, type=tuple[str, Others]))
            case "records":
                found = await self._records.encode(msgspec.json.decode(argument, type=RecordQuery))
                return b"[%b]" % b",".join(found)
            case "flow":
                self._flow = self._flow or RequestFlow(self._records, self._clock)
                return _encode(await self._flow.update())
            case "flow_end":
                self._flow = None
                return b""
            case "target_requests":
                target, limit = msgspec.json.decode(argument, type=tuple[str, int])
                return _encode(await list_target_requests(self._records, target, limit))
            case "prefixes":
                sizes = msgspec.json.decode(argument, type=dict[str, int])
                return _encode(await count_prefixes(self._records, self._clock.wall(), sizes))

    async def _encode_record(self, id: str, others: Others) -> bytes:
        record = self._records.get(id)
        if record is None:
            return b""
        policies = self._scheduler.selector.policy_set.policies
        return _encode_json(await describe_in_full(record, policies, others))
