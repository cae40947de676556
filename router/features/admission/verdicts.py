"""Inputs and results of admission control."""

from __future__ import annotations

from typing import Literal, NamedTuple

from router.features.admission.fair_order import TenantShare
from scorers.admission.contract import NO_CLAIM, Admission, Claim, ExpectedLoad, QueueName


class PrefillTimes(NamedTuple):
    """Seconds that an idle engine of typical speed takes for a prompt."""

    held_s: float  # if the engine holds most of the prompt
    cold_s: float  # if the engine holds none of the prompt


class Arrival(NamedTuple):
    """A request that arrives for admission."""

    session: bytes | None  # None: it cannot be recognised again
    prompt_tokens: int | None  # None: unknown
    local_tokens: int | None = None  # leading prompt tokens that some instance holds; None: unknown
    claim: Claim = NO_CLAIM
    holders: tuple[str, ...] = ()  # the targets that hold (nearly) these tokens
    prefill: PrefillTimes | None = None  # None: unknown


class Admitted(NamedTuple):
    admission: Admission


class Queued(NamedTuple):
    """A request that waits, or that is refused because it has waited as long as it may (`late`) or its first token
    cannot come in time (`deadline`).
    """

    admission: Admission
    position: int  # from 1, over all queues; with fair shares, the number of its tenant's waiting requests
    expected_s: float | None  # the wait still ahead; None: unknown
    reason: Literal["late", "deadline"] = "late"


class Released(NamedTuple):
    """The requests that no longer wait. `more`: others, beyond the requested number, may be released now, too."""

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
    """The part of a request that is in the cache of its engine, which has at least begun the answer."""

    prompt_tokens: int
    context_tokens: int  # prompt and answer
    local_tokens: int | None = None  # prompt tokens from the instance's own cache; None: unknown
    decode_s: float | None = None  # from the first token to the last; None: the answer has not ended
    cached_tokens: int | None = None  # prompt tokens from any cache or pool; None: unknown


class KnownProgram(NamedTuple):
    """One router's state of a silent program, to be sent to another router."""

    name: bytes
    prompt_tokens: int
    context_tokens: int
    target: str | None
