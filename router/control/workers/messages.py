"""What the workers of one router tell each other: typed messages, and their bytes.

    worker -> leader    what it has booked, where sessions went, requests of an experiment, its counters when asked
    leader -> worker    the same of everybody else, and what the operator switched

Loads are told as they are, not by how they changed: the last word counts, so none can be missed for good, and whoever
dies is forgotten with one word. A frame is the list of messages that were gathered, its length in four bytes before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from router.fleet.load import WorkerShare
from router.scheduling.policy.record import AttemptEnd

HEAD_BYTES = 4

Question = Literal["families", "scrape", "record", "records"]
"""families: the counters of one worker; scrape: the metrics page of all; records: the newest; record: one by its id."""


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Fields are told in this order, without their names."""


class StartMessage(Message, frozen=True):
    """The leader's first word: who the follower is, and all that it needs to be one."""

    number: int
    config: str  # JSON
    secret: int


class WorkerUp(Message, frozen=True):
    """It takes connections. `run` begins the ids of its records."""

    run: str
    pid: int


class LoadMessage(Message, frozen=True):
    """Bookings of a target: a follower's own to the leader; to a follower, those of everybody else together."""

    target: str
    share: WorkerShare


class SessionMoved(Message, frozen=True):
    """A session's last target is another one now."""

    prefill: bool  # of the prefill halves of pairs
    model: str
    session: str
    target: str


class ResponseStored(Message, frozen=True):
    """A stored response, and who has it."""

    response: str
    target: str


class DrainMessage(Message, frozen=True):
    instance: str
    on: bool


class PolicyRule(Message, frozen=True):
    """What decides from now on, as configuration, so that the same functions build it everywhere."""

    version: int  # rises with every one
    policies: dict[str, str]  # JSON of all, by name
    active: str
    experiment: str | None  # JSON
    rolled_back: list[str]


class PolicyApplied(Message, frozen=True):
    """A follower has it in force, with these digests; or `trouble` says why not."""

    version: int
    digests: dict[str, str]
    trouble: str | None = None


class RequestBegan(Message, frozen=True):
    """A request of an experiment was placed. Times are of the machine's monotonic clock, which all share."""

    version: int  # of the rule that placed it
    number: int
    arm: str
    unit: bytes
    arrived_s: float


class RequestAnswered(Message, frozen=True):
    """Its first byte has come."""

    number: int
    ttft_ms: float


class RequestEnded(Message, frozen=True):
    """It is over."""

    number: int
    end: AttemptEnd | None  # of its last attempt; None: there was none
    target: str | None
    status: int | None
    ttft_ms: float | None
    duration_ms: float | None
    prompt_tokens: int | None
    cached_tokens: int | None


class AskMessage(Message, frozen=True):
    """To be answered with an `AnswerMessage` of the same number."""

    number: int
    question: Question
    about: str = ""


class AnswerMessage(Message, frozen=True):
    number: int
    payload: bytes


class StopMessage(Message, frozen=True):
    """Finish what is under way, and end."""


Any = (
    StartMessage
    | WorkerUp
    | LoadMessage
    | SessionMoved
    | ResponseStored
    | DrainMessage
    | PolicyRule
    | PolicyApplied
    | RequestBegan
    | RequestAnswered
    | RequestEnded
    | AskMessage
    | AnswerMessage
    | StopMessage
)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Any]).decode


def frame(messages: Sequence[Message]) -> bytes:
    body = _encode(messages)
    return len(body).to_bytes(HEAD_BYTES) + body


class FrameReader:
    """Bytes as they come in, to messages as they were told."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Any]:
        """Raises `msgspec.DecodeError` for what no worker of this version tells."""
        data = self._rest + data
        at = 0
        while len(data) - at >= HEAD_BYTES:
            end = at + HEAD_BYTES + int.from_bytes(data[at : at + HEAD_BYTES])
            if end > len(data):
                break
            yield from _decode(memoryview(data)[at + HEAD_BYTES : end])
            at = end
        self._rest = data[at:]
