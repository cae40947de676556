"""Typed messages between the workers of one router and between the leaders of several routers, and their bytes.

    worker -> leader    its bookings, session moves, requests of an experiment, requests that ask for admission, models
                        that want an instance, and its counters when asked
    leader -> worker    the same of all other workers, who may begin, and what the operator switched
    leader -> leader    of another router (a replica): the bookings of all workers, session moves, drains

What is said does not depend on how it travels: between workers over a socket pair (`channel.py`), between replicas over
ZeroMQ (`control/replicas`).

A load message carries the whole load of a target, not a change: the latest one is valid by itself, so a lost one does
no lasting harm and a worker that died is forgotten with one message. A frame is a list of messages, preceded by its
length in four bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec

from router.fleet.overlap_accuracy import Finding
from router.fleet.preload_book import Reason
from router.fleet.worker_share import WorkerShare
from router.request.admission.computed_prompt import ComputedPrompt
from router.request.admission.shared_prefixes import PromptPrefix
from router.scheduling.policy.record import AttemptEnd
from router.tenants.tenant_totals import TenantTotals
from router.tenants.usage import UsageRow

HEAD_BYTES = 4


Query = Literal[
    "ping", "families", "scrape", "record", "records", "local_tokens", "flow", "flow_end", "target_requests", "prefixes"
]
"""ping: nothing, to see whether the worker answers; families: the counters of one worker; scrape: the metrics page of
all; records: those that match a `RecordQuery`; record: one, by its id and which `Others`; local_tokens: what instances
hold of the prompt of a request that asks for admission, by its number; flow: what changed of the sums of recent
requests since the last query; flow_end: nobody looks at them any more; target_requests: the last requests of a target;
prefixes: the prefixes that recent prompts share."""


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
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


class WorkerStopping(Message, frozen=True):
    """The follower accepts no more connections; it ends when those that it has do."""


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
    """A response is stored at `target`. `tenant` is empty where clients need not say who they are."""

    response: str
    target: str
    tenant: str = ""


class BlocksSent(Message, frozen=True):
    """Blocks that a request brings into a target's cache, before any event has told of them."""

    target: str
    keys: bytes  # of `pack_keys`
    computed: bool = False  # all of a prompt, by a target whose events cannot be trusted; else they are on their way


class PredictionChecked(Message, frozen=True):
    """What an answer has shown of the overlap that a target's events predicted, where that is evidence for others."""

    target: str
    finding: Finding


class DrainMessage(Message, frozen=True):
    """An operator's decision. Between replicas the highest `version` counts, of equal ones the greater `by`."""

    instance: str
    on: bool
    version: int = 0  # 0: between the workers of one router, whose leader decides
    by: str = ""  # run id of the router that was asked


class AllLoads(Message, frozen=True):
    """All bookings of a replica: it has none at other targets."""

    loads: dict[str, WorkerShare]


class CacheForgotten(Message, frozen=True):
    """The weights of an instance changed: nothing that its caches hold is of use."""

    instance: str
    number: int = 0  # between replicas: of those that `by` was asked for, from 1
    by: str = ""  # run id of the router that was asked


class BreakerMoved(Message, frozen=True):
    """The circuit breaker of a target opened after failures of its engine, or closed after an answer."""

    target: str
    opened: bool
    client: str | None = None  # of the last failure: its key's name or address; None: unknown
    several: bool = False  # clients had failures


class InstanceSuspected(Message, frozen=True):
    """A request could not connect to an instance, or died there: probe it now."""

    instance: str


class PrefixPreloaded(Message, frozen=True):
    """A prefix was loaded into a target ahead of the requests for it; see `PreloadBook.expect`."""

    target: str
    reason: Reason
    keys: tuple[int, ...]
    tokens: int
    loaded_tokens: int


class PreloadSettled(Message, frozen=True):
    """A request at a target was the first to ask for prefixes that were loaded ahead; by key, whether it hit them."""

    target: str
    found: dict[int, bool]


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
    uncontinued: str | None = None  # as in a record


class AdmissionAsked(Message, frozen=True):
    """A request asks for admission. Its number is the worker's own."""

    number: int
    model: str  # base model
    session: bytes | None
    prompt_tokens: int | None
    tokens_known: bool  # so that the worker can find out what instances hold of them
    prefix: PromptPrefix | None = None  # None: unknown
    tenant: str | None = None
    weight: float = 1.0
    priority: int = 0
    left_s: float | None = None  # until its first token is due; None: it has no deadline


class AdmissionVerdict(Message, frozen=True):
    """A request begins, or is refused."""

    number: int
    waited_s: float | None  # None: it was admitted at once
    rule: str | None  # that admitted it; None: it was refused, or admission control is off
    refusal: AdmissionRefusal | None = None
    full: tuple[str, ...] = ()  # targets that had no room for it


class AdmissionRefusal(NamedTuple):
    """Carries the `TooBusy` with which a request is refused."""

    message: str
    code: str | None
    retry_after_s: int | None


class AdmissionPlaced(Message, frozen=True):
    """An admitted request was sent to `target`, where `held_tokens` of its prompt are expected; None: unknown."""

    number: int
    target: str
    held_tokens: int | None = None


class AdmissionAnswered(Message, frozen=True):
    """The first byte of an admitted request's answer arrived."""

    number: int


class AdmissionEnded(Message, frozen=True):
    """A request ended, without an answer where `computed` is None, or its client left while it waited."""

    number: int
    computed: ComputedPrompt | None


class TenantReport(Message, frozen=True):
    """The sender, and those that it speaks for, charged a tenant so much; see `TenantTotals`."""

    tenant: str
    totals: TenantTotals


class UsageReport(Message, frozen=True):
    """Tenants have used so much at a follower since its last report."""

    rows: list[UsageRow]


class InstanceWanted(Message, frozen=True):
    """Requests wait at the sender for a model that no instance serves; said again while they do."""

    model: str
    waiting: int


class WakeCallEnded(Message, frozen=True):
    """The leader has called for an instance with `model`."""

    model: str
    failed: bool


class AskMessage(Message, frozen=True):
    """A query, answered with an `AnswerMessage` of the same number."""

    number: int
    query: Query
    argument: str = ""


class AnswerMessage(Message, frozen=True):
    number: int
    payload: bytes


class StopMessage(Message, frozen=True):
    """Accept no more connections, finish the requests in progress, then exit. A client that is between two requests has
    `idle_s` for its next one.
    """

    idle_s: float


SessionMessage = SessionMoved | SessionAnswered | ResponseStored
EngineMessage = BreakerMoved | InstanceSuspected | CacheForgotten | PredictionChecked
"""What happened to an engine, by any worker's requests or by an operator."""

SpreadMessage = SessionMessage | EngineMessage | DrainMessage | BlocksSent
"""What all workers of another router apply as those of the one where it happened did."""

SharedMessage = LoadMessage | AllLoads | SpreadMessage
"""What the leaders of several routers tell each other."""

AnyMessage = (
    SharedMessage
    | StartMessage
    | WorkerUp
    | WorkerStopping
    | PrefixPreloaded
    | PreloadSettled
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
    | TenantReport
    | UsageReport
    | InstanceWanted
    | WakeCallEnded
    | AskMessage
    | AnswerMessage
    | StopMessage
)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[AnyMessage]).decode


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
