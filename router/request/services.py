"""The services that a request passes through."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from router.backends.feeds.health import HealthProbe
from router.backends.kv_store import KvStore
from router.clock import Clock
from router.config.schema import Config
from router.prompt.api.parse import ReadOptions
from router.prompt.tokenization.tokenization import Tokenization
from router.request.adapter_loading import AdapterLoader
from router.request.admin_tokens import AdminTokens
from router.request.admission.waiting import AdmissionControl
from router.request.concurrency import ConcurrencyLimiter
from router.request.data_path import DataPath
from router.request.metering import Meter
from router.request.model_names import ModelNames
from router.request.retry_budget import RetryBudget
from router.request.stored_responses import StoredResponseFinder
from router.request.wake.model_waits import ModelWaits
from router.scheduling.scheduler import Scheduler
from router.telemetry.decision_log.writer import DecisionLogWriter
from router.telemetry.metrics.prometheus import Metrics
from router.telemetry.recent_records import RecentRecords
from router.telemetry.tracing.tracing import Tracing


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of the router that a request passes through."""

    config: Config
    clock: Clock
    scheduler: Scheduler
    limiter: ConcurrencyLimiter
    admission: AdmissionControl
    meter: Meter
    retry_budget: RetryBudget
    tokenization: Tokenization
    kv_store: KvStore
    read_options: ReadOptions
    large_body: asyncio.Lock  # held while a large body is read
    data_path: DataPath
    health: HealthProbe
    recent_records: RecentRecords
    decision_log: DecisionLogWriter | None
    metrics: Metrics
    tracing: Tracing | None
    admin_tokens: AdminTokens
    waits: ModelWaits | None  # None: requests for a model without an instance are refused
    models: ModelNames | None  # None: clients use the engines' own names
    stored_responses: StoredResponseFinder
    adapters: AdapterLoader | None  # None: the router loads none
    run_id: str  # prefix of the ids of all records of this process
