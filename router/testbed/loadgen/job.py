"""What one client process is told, and what it tells of each request: values that travel between processes as msgpack.

Moments are seconds since the load's common beginning. Every process gets that as a moment of the wall clock, takes it
once for a zero on its own monotonic clock, and measures by that: so the rows of all processes lie on one axis.
"""

from __future__ import annotations

import msgspec

from router.testbed.loadgen.conversations import Prompts
from router.testbed.workloads import Session


class LoadJob(msgspec.Struct, frozen=True, kw_only=True):
    """A share of the sessions. `concurrency` None: an open loop, each session begins at its `start_s`."""

    url: str
    model: str
    api_key: str | None = None
    name: str = "load"  # of the whole load; sessions are named after it
    text_seed: int = 1
    prompts: Prompts = "text"
    tokens_per_word: float = 1.0
    concurrency: int | None = None
    until_s: float | None = None  # nothing new is sent after it; None: until all is sent
    sessions: tuple[Session, ...] = ()


class SentRequest(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One request and what came of it. `late_s`: after it was due, because the client itself was busy."""

    session: int
    turn: int
    sent_s: float
    late_s: float
    duration_s: float  # to the last token, or to the failure
    planned_tokens: int  # of the prompt
    planned_output_tokens: int
    ttft_s: float | None = None  # None from here: failed
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None  # or the endpoint does not tell
    target: str | None = None  # or no router says which
    status: int | None = None  # of a failure; None: no answer came
    failure: str | None = None  # its reason; None: it is answered
