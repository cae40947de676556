"""Messages between the supervisor and a worker over their socket pair, and their bytes.

    supervisor -> worker    how to start, which workers live, when to accept connections and when to stop
    worker -> supervisor    the worker's progress in starting and stopping
    both ways               queries: pings and metrics pages; the metrics page of all workers

Everything else goes from worker to worker (`control/peers`). A frame is a list of messages, preceded by its length
in four bytes. Supervisor and workers are always of one version.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec

HEAD_BYTES = 4

Query = Literal["ping", "page", "counters", "prepare_successor", "release", "reload", "scrape"]
"""ping: nothing, to check that the worker replies; page: all its metrics; counters: its metrics that are summed
over all workers; prepare_successor: write the index snapshot, and
reply what operators have set; release: accept no more connections, since other processes
do; reload: read the configuration files; scrape, sent by a worker: the metrics page of all workers."""


class WorkerMessage(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Fields are encoded in this order, without their names."""


class StartWorker(WorkerMessage, frozen=True):
    """The first message to a worker: everything that it needs to start."""

    number: int
    config: str  # JSON
    file: str | None  # where the configuration was read
    only_picker: bool
    key_secret: int  # of block keys and pseudonyms
    host: str  # id of this host, for peers
    name: str  # of the Unix sockets between workers, without their numbers
    peer_secret: bytes  # of these sockets
    learn: bool  # other workers run already: take over what they have learned
    hold: bool  # accept connections after `OpenListeners` only
    join: bool  # connect to other hosts; else after `JoinHosts`
    state: bytes = b""  # what operators had set at the router that ran before; none: it is in a file, or there is none


class LivingWorker(NamedTuple):
    """A worker that lives. The ids of its records begin with `run`. `up` is true if it accepts connections."""

    number: int
    run: str
    pid: int
    up: bool


class Members(WorkerMessage, frozen=True):
    """The workers that live, and the number of the one on duty. `ready` is true if an engine is ready for requests
    at the worker on duty.
    """

    living: list[LivingWorker]
    on_duty: int
    ready: bool = False


class OpenListeners(WorkerMessage, frozen=True):
    """Accept connections when the engines are known."""


class JoinHosts(WorkerMessage, frozen=True):
    """Connect to other hosts: the port of this host is free now."""


class StopWorker(WorkerMessage, frozen=True):
    """Accept no more connections, finish the requests in flight, then exit. A client that is between two requests
    has `idle_s` for its next one.
    """

    idle_s: float


class WorkerBuilt(WorkerMessage, frozen=True):
    """The worker is built from its configuration, and about to start."""

    run: str
    pid: int


class WorkerFailed(WorkerMessage, frozen=True):
    """The worker cannot start with this configuration, and ends."""

    error: str


class WorkerStarted(WorkerMessage, frozen=True):
    """The worker is started, with its duties if it has them."""


class WorkerReady(WorkerMessage, frozen=True):
    """An engine is ready for requests."""


class WorkerUp(WorkerMessage, frozen=True):
    """The worker accepts connections."""


class WorkerStopping(WorkerMessage, frozen=True):
    """The worker accepts no more connections; it ends when its open connections end."""


class AskMessage(WorkerMessage, frozen=True):
    """A query, answered with an `AnswerMessage` of the same number."""

    number: int
    query: Query
    argument: str = ""


class AnswerMessage(WorkerMessage, frozen=True):
    number: int
    payload: bytes


AnyMessage = (
    StartWorker
    | Members
    | OpenListeners
    | JoinHosts
    | StopWorker
    | WorkerBuilt
    | WorkerFailed
    | WorkerStarted
    | WorkerReady
    | WorkerUp
    | WorkerStopping
    | AskMessage
    | AnswerMessage
)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[AnyMessage]).decode


def encode_messages(messages: Sequence[WorkerMessage]) -> bytes:
    """Return a frame."""
    body = _encode(messages)
    return len(body).to_bytes(HEAD_BYTES) + body


class FrameReader:
    """Splits a byte stream into messages."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[AnyMessage]:
        """Yield the messages that `data` completes. Raises `msgspec.DecodeError` for an unknown message."""
        data = self._rest + data
        at = 0
        while len(data) - at >= HEAD_BYTES:
            end = at + HEAD_BYTES + int.from_bytes(data[at : at + HEAD_BYTES])
            if end > len(data):
                break
            yield from _decode(memoryview(data)[at + HEAD_BYTES : end])
            at = end
        self._rest = data[at:]
