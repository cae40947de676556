"""A request as prepared for the choice of an engine."""

from __future__ import annotations

from typing import NamedTuple

from router.fleet.instance import ServedModel
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.continuable_stream import ContinuableStream
from router.prompt.prompt import Prompt, UnknownIds
from router.request.admin_tokens import PolicyOverride
from router.request.admission.lease import AdmissionLease
from router.telemetry.tracing.context import TraceContext
from scorers.contract import PoolHit


class RequestTimes(NamedTuple):
    """Monotonic times of a request."""

    arrived_s: float
    read_s: float  # its body was complete


class PreparedRequest(NamedTuple):
    """A request as far as it is known before an engine is chosen."""

    prompt: Prompt
    served: ServedModel | None  # None: the request names no model
    tokens: TokenizedPrompt | UnknownIds
    pool_hit: PoolHit | None = None
    override: PolicyOverride | None = None
    lease: AdmissionLease | None = None  # None: sessions are not counted
    trace: TraceContext | None = None  # None: no tracing
    stream: ContinuableStream | None = None  # None: another engine cannot carry the answer on
