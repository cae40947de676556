"""Values that go into admission control and come out of it."""

from __future__ import annotations

from typing import Literal, NamedTuple

from router.features.admission.fair_order import TenantShare
from scorers.admission.contract import NO_CLAIM, Admission, Claim, ExpectedLoad, QueueName


class PrefillTimes(NamedTuple):
    """Seconds that an idle engine of typical speed takes for a prompt."""

    held_s: float  # where most of it is held
    cold_s: float  # where nothing of it is


class Arrival(NamedTuple):
    """A request that asks for admission."""

    session: bytes | None  # None: it cannot be recognised again
    prompt_tokens: int | None  # None: unknown
    local_tokens: int | None = None  # leading ones that some instance holds; None: unknown
    claim: Claim = NO_CLAIM
    holders: tuple[str, ...] = ()  # the targets that hold those
    prefill: PrefillTimes | None = None  # None: unknown


class Admitted(NamedTuple):
    admission: Admission


class Queued(NamedTuple):
    """A request that waits, or that does not begin any more: it has waited as long as it may (`late`), or its first
    token cannot come in time (`deadline`).
    """

    admission: Admission
    position: int  # from 1, over all queues; with fair shares, those of its tenant that wait
    expected_s: float | None  # the wait still ahead; None: unknown
    reason: Literal["late", "deadline"] = "late"


class Released(NamedTuple):
    """The requests that no longer wait. `more`: others may be released at once, too, beyond the number asked
    for.
    """

    admitted: tuple[Admission, ...]
    refused: tuple[Queued, ...]
    more: bool = False


NOTHING_RELEASED = Released((), ())


class AdmissionState(NamedTuple):
    """The state of one model's admission, for people and metrics."""

    known: int  # programs, however long they have been silent
    live: ExpectedLoad | None  # None: the rule counts no contexts
    capacity_tokens: int | None  # None: unknown, so nothing waits
    queued: dict[QueueName, int]  # number of waiting requests
    waiting: tuple[Queued, ...]  # the first of them, in order
    shares: tuple[TenantShare, ...] = ()  # of tenants that wait, run, or have a debt; empty without fair shares


class ComputedPrompt(NamedTuple):
    """The part of a request in the cache of the engine that has at least begun to answer it."""

    prompt_tokens: int
    context_tokens: int  # prompt and answer
    local_tokens: int | None = None  # prompt tokens from the instance's own cache; None: unknown
    decode_s: float | None = None  # from the first token to the last; None: the answer has not ended
    cached_tokens: int | None = None  # prompt tokens from any cache or pool; None: unknown


class KnownProgram(NamedTuple):
    """A silent program as one router knows it, for another one."""

    name: bytes
    prompt_tokens: int
    context_tokens: int
    target: str | None
