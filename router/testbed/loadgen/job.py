"""The messages between a load and its client processes: msgpack in frames of four bytes of length and that many bytes.

Moments are seconds since the load's common start. Every process gets that as a moment of the wall clock, converts it
once to its own monotonic clock, and measures from there: so the rows of all processes share one time axis.
"""

from __future__ import annotations

import asyncio

import msgspec

from router.testbed.loadgen.conversations import Prompts
from router.testbed.workloads import Session


class LoadJob(msgspec.Struct, frozen=True, kw_only=True):
    """One process's share of the sessions."""

    url: str
    model: str
    api_key: str | None = None
    name: str = "load"  # of the whole load; session ids begin with it
    text_seed: int = 1
    prompts: Prompts = "text"
    tokens_per_word: float = 1.0
    concurrency: int | None = None  # agents of a closed loop; `None`: open, each session begins at its `start_s`
    until_s: float | None = None  # nothing new is sent after it; `None`: until all is sent
    sessions: tuple[Session, ...] = ()


class SentRequest(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One request and its outcome. `late_s`: how long after it was due it was sent, because the client was busy."""

    session: int
    turn: int
    sent_s: float
    late_s: float
    duration_s: float  # to the last token, or to the failure
    planned_tokens: int  # of the prompt
    planned_output_tokens: int
    ttft_s: float | None = None  # this and the next three: `None` for a failure
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None  # `None` also when the endpoint does not report it
    target: str | None = None  # `None` when no router reports it
    status: int | None = None  # of a failure; `None`: there was no answer
    failure: str | None = None  # its reason; `None`: the request was answered


def encode_frame(message: bytes) -> bytes:
    """Return the message with its length in front."""
    return len(message).to_bytes(4, "big") + message


async def read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """Return the next message, `None` when the other side has closed the pipe, even inside a message."""
    try:
        length = int.from_bytes(await reader.readexactly(4), "big")
        return await reader.readexactly(length)
    except asyncio.IncompleteReadError:
        return None
