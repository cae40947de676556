"""Typed messages between the workers of one router, and their bytes.

    worker -> leader    its bookings, session moves, requests of an experiment, requests that ask for admission, and its
                        counters when asked
    leader -> worker    the same of all other workers, who may begin, and what the operator switched

A load message carries the whole load of a target, not a change: the latest one is valid by itself, so a lost one does
no lasting harm and a worker that died is forgotten with one message. A frame is a list of messages, preceded by its
length in four bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple, Protocol

import msgspec

from router.fleet.load import WorkerShare
from router.kvcache.events import TargetId
from router.request.admission.lease import ComputedPrompt
from router.request.admission.shared_prefixes import PromptPrefix
from router.scheduling.policy.record import AttemptEnd

HEAD_BYTES = 4

ShareOf = Callable[[TargetId], WorkerShare]

Query = Literal[
    "ping", "families", "scrape", "record", "records", "local_tokens", "flow", "flow_end", "target_requests", "prefixes"
]
"""ping: nothing, to see whether the worker answers; families: the counters of one worker; scrape: the metrics page of
all; records: those that match a `RecordQuery`; record: one, by its id and which `Others`; local_tokens: what instances
hold of the prompt of a request that asks for admission, by its number; flow: what changed of the sums of recent
requests since the last query; flow_end: nobody looks at them any more; target_requests: the last requests of a target;
prefixes: the prefixes that recent prompts share."""


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Fields are encoded in this order, without their names."""


class StartMessage(Message, frozen=True):
    """The first message to a follower: its number and everything it needs to start."""

    number: int
    config: str  # JSON
    secret: int


class WorkerUp(Message, frozen=True):
    """The follower accepts connections. The ids of its records begin with `run`."""

    run: str
    pid: int


class LoadMessage(Message, frozen=True):
    """Bookings of a target: to the leader the follower's own, to a follower the sum of all other workers."""

    target: str
    share: WorkerShare


class SessionMoved(Message, frozen=True):
    """A session has a new last target."""

    prefill: bool  # of the prefill halves of pairs
    model: str
    session: str
    target: str


class SessionAnswered(Message, frozen=True):
    """A session's progress after another answer; see `SessionProgress`."""

    model: str
    session: str
    turn: int
    answered_s: float  # monotonic: the clock of all processes of a machine
    tool_call: bool | None


class ResponseStored(Message, frozen=True):
    """A response is stored at `target`."""

    response: str
    target: str


class DrainMessage(Message, frozen=True):
    instance: str
    on: bool


class PolicyRule(Message, frozen=True):
    """The policy set in force, as configuration, so that every worker builds it with the same functions."""

    version: int  # rises with every switch
    policies: dict[str, str]  # JSON of each policy, by name
    active: str
    experiment: str | None  # JSON
    rolled_back: list[str]
    admission: str  # JSON


class PolicyApplied(Message, frozen=True):
    """A follower has the rule in force, with these digests; or `trouble` says why not."""

    version: int
    digests: dict[str, str]
    trouble: str | None = None


class RequestBegan(Message, frozen=True):
    """A request of an experiment was placed. Times are of the machine's monotonic clock, which all workers share."""

    version: int  # of the rule that placed it
    number: int
    arm: str
    unit: bytes
    arrived_s: float


class RequestAnswered(Message, frozen=True):
    """The first byte of a request's answer arrived."""

    number: int
    ttft_ms: float


class RequestEnded(Message, frozen=True):
    number: int
    end: AttemptEnd | None  # of its last attempt; None: it had none
    target: str | None
    status: int | None
    ttft_ms: float | None
    duration_ms: float | None
    prompt_tokens: int | None
    cached_tokens: int | None


class AdmissionAsked(Message, frozen=True):
    """A request asks for admission. Its number is the worker's own."""

    number: int
    model: str  # base model
    session: bytes | None
    prompt_tokens: int | None
    tokens_known: bool  # so that the worker can find out what instances hold of them
    prefix: PromptPrefix | None = None  # None: unknown


class AdmissionVerdict(Message, frozen=True):
    """A request begins, or is refused."""

    number: int
    waited_s: float | None  # None: it was admitted at once
    rule: str | None  # that admitted it; None: it was refused, or admission control is off
    refusal: AdmissionRefusal | None = None


class AdmissionRefusal(NamedTuple):
    """Carries the `TooBusy` with which a request is refused."""

    message: str
    code: str | None
    retry_after_s: int | None


class AdmissionPlaced(Message, frozen=True):
    """An admitted request was sent to `target`."""

    number: int
    target: str


class AdmissionAnswered(Message, frozen=True):
    """The first byte of an admitted request's answer arrived."""

    number: int


class AdmissionEnded(Message, frozen=True):
    """A request ended, without an answer where `computed` is None, or its client left while it waited."""

    number: int
    computed: ComputedPrompt | None


class AskMessage(Message, frozen=True):
    """A query, answered with an `AnswerMessage` of the same number."""

    number: int
    query: Query
    argument: str = ""


class AnswerMessage(Message, frozen=True):
    number: int
    payload: bytes


class StopMessage(Message, frozen=True):
    """Finish the requests in progress, then exit."""


AnyMessage = (
    StartMessage
    | WorkerUp
    | LoadMessage
    | SessionMoved
    | SessionAnswered
    | ResponseStored
    | DrainMessage
    | PolicyRule
    | PolicyApplied
    | RequestBegan
    | RequestAnswered
    | RequestEnded
    | AdmissionAsked
    | AdmissionVerdict
    | AdmissionPlaced
    | AdmissionAnswered
    | AdmissionEnded
    | AskMessage
    | AnswerMessage
    | StopMessage
)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[AnyMessage]).decode


class Broadcast(Protocol):
    """The way to the other workers: from the leader to all followers, from a follower to its leader."""

    def report_load(self, target: TargetId) -> None:
        """Send this worker's bookings of `target`, which have changed."""

    def send(self, message: Message) -> None: ...

    def flush(self) -> None:
        """Write the gathered messages now: another worker may need them in a moment."""


class Outbox:
    """Messages gathered until they are sent: one load per target, all others in order.

    A target that was booked and released ten times meanwhile gives one message, with its load (`share_of`) when the
    outbox is taken. `wake` is called when the outbox stops being empty.
    """

    def __init__(self, share_of: ShareOf, wake: Callable[[], None]) -> None:
        self._share_of = share_of
        self._wake = wake
        self._booked: set[TargetId] = set()
        self._messages: list[Message] = []
        self._awake = False

    def report_load(self, target: TargetId) -> None:
        self._booked.add(target)
        if not self._awake:
            self._awake = True
            self._wake()

    def send(self, message: Message) -> None:
        self._messages.append(message)
        if not self._awake:
            self._awake = True
            self._wake()

    def take(self) -> list[Message]:
        """Return everything gathered, and empty the outbox."""
        loads: list[Message] = [LoadMessage(target, self._share_of(target)) for target in self._booked]
        messages, self._messages = loads + self._messages, []
        self._booked.clear()
        self._awake = False
        return messages


def encode_frame(messages: Sequence[Message]) -> bytes:
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
