"""The services that a request passes through, and the request as prepared for the choice of an engine."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import NamedTuple

from router.backends.feeds.health import HealthProbe
from router.backends.kv_store import KvStore
from router.backends.token_ids.passthrough import TokenIdPassthrough
from router.clock import Clock
from router.config.schema import Config
from router.fleet.instance import ServedModel
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.api.parse import ReadOptions
from router.prompt.prompt import Prompt, UnknownIds
from router.prompt.tokenization.tokenization import Tokenization
from router.proxy.headers import HeaderRules
from router.proxy.upstreams import Upstreams
from router.request.admin_tokens import AdminTokens, PolicyOverride
from router.request.admission.lease import AdmissionLease
from router.request.admission.waiting import AdmissionControl
from router.request.concurrency import ConcurrencyLimiter
from router.request.retry_budget import RetryBudget
from router.scheduling.scheduler import Scheduler
from router.telemetry.decision_log.writer import DecisionLogWriter
from router.telemetry.metrics.prometheus import Metrics
from router.telemetry.recent_records import RecentRecords
from scorers.contract import PoolHit


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of the router that a request passes through."""

    config: Config
    clock: Clock
    scheduler: Scheduler
    limiter: ConcurrencyLimiter
    admission: AdmissionControl
    retry_budget: RetryBudget
    tokenization: Tokenization
    passthrough: TokenIdPassthrough
    kv_store: KvStore
    read_options: ReadOptions
    large_body: asyncio.Lock  # held while a large body is read
    header_rules: HeaderRules
    upstreams: Upstreams
    health: HealthProbe
    recent_records: RecentRecords
    decision_log: DecisionLogWriter | None
    metrics: Metrics
    admin_tokens: AdminTokens
    run_id: str  # prefix of the ids of all records of this process


class PreparedRequest(NamedTuple):
    """A request as far as it is known before an engine is chosen."""

    prompt: Prompt
    served: ServedModel | None  # None: the request names no model
    tokens: TokenizedPrompt | UnknownIds
    pool_hit: PoolHit | None = None
    override: PolicyOverride | None = None
    lease: AdmissionLease | None = None  # None: sessions are not counted
