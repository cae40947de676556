"""The services that a request uses on its path."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from router.clock import Clock
from router.config.schema import Config
from router.errors import RequestRefused
from router.fleet.engine_facts import ModelCard
from router.prompt.api.parse import ReadOptions
from router.prompt.tokenization.tokenization import Tokenization
from router.proxy.call import ClientRequest
from router.proxy.relay import RelayEnd
from router.request.admin_tokens import AdminTokens
from router.request.concurrency import ConcurrencyLimiter
from router.request.data_path import DataPath
from router.request.request import Request
from router.request.retry_budget import RetryBudget
from router.request.stored_responses import StoredResponseFinder
from router.scheduling.policy.record import Record
from router.scheduling.scheduler import Scheduler
from router.telemetry.failed_attempts import FailedAttempts
from router.telemetry.metrics.prometheus import Metrics
from router.tenants.tenant import Tenant


class RequestPath(NamedTuple):
    """The stages of requests in their order (`stages.py`), and the later parts, of the core and of features."""

    stages: tuple[Stage, ...]  # of a request with a prompt
    stored: tuple[Stage, ...]  # of a request about a stored response
    again: tuple[Stage, ...]  # the part of `stages` that runs again for another model
    recoveries: tuple[Recovery, ...]
    refusals: tuple[RefusalSink, ...]  # notified of refusals of requests without a record
    cards: tuple[CardFilter, ...]


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of the router that a request passes through."""

    config: Config
    clock: Clock
    scheduler: Scheduler
    limiter: ConcurrencyLimiter
    retry_budget: RetryBudget
    tokenization: Tokenization
    identify: Identify | None  # None: clients need not identify themselves
    read_options: ReadOptions
    large_body: asyncio.Lock  # held while a large body is read
    data_path: DataPath
    suspect: Callable[[str], None]  # probes an instance now, because a request to it failed
    show: Callable[[Record], None]  # makes a new open record visible in the admin API
    metrics: Metrics
    failed_attempts: FailedAttempts
    admin_tokens: AdminTokens
    stored_responses: StoredResponseFinder
    run_id: str  # prefix of the ids of all records of this process
    path: RequestPath


Stage = Callable[[Request, Services], Awaitable[None] | None]
"""A step before the choice of an engine; returns None, or an awaitable to wait for. Raises `RequestRefused`."""

Recovery = Callable[[Request, Record, RelayEnd | None, Services], Awaitable[RelayEnd | None]]
"""A recovery after the last attempt, given its end (None: there was no engine). Returns the end that counts then.
"""

RefusalSink = Callable[[ClientRequest, RequestRefused, str, float], None]
"""Receives a rejected request, the refusal, the endpoint as in metrics, and the arrival time in s."""

Identify = Callable[[ClientRequest], Tenant]
"""Returns the tenant of a request, by its headers. Raises `Unauthorized`."""

CardFilter = Callable[[Sequence[ModelCard], ClientRequest], Sequence[ModelCard]]
"""Adds model cards to, or removes them from, the list that a client gets."""
