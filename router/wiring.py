"""The list of features, and constructors of the parts that serve the core: APIs, data paths and listeners.

`app.py` decides how the parts are connected; this module builds each of them. Nothing is started here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from pkgutil import resolve_name

from fastapi import FastAPI

from router.config import schema
from router.config.sections.listeners import ListenConfig
from router.control.core import Core
from router.control.feature import Feature
from router.errors import needs_extra
from router.picker.answer_log import AnswerLog
from router.proxy.asgi import AsgiHandler
from router.proxy.headers import build_header_rules
from router.proxy.listener import HttpListener, configure_server
from router.proxy.listeners import Listener
from router.proxy.listening_sockets import ListeningSockets, SocketShare
from router.proxy.upstreams import UpstreamTimeouts
from router.request.admin_tokens import AdminTokens
from router.request.concurrency import ConcurrencyLimiter
from router.request.ops_api import MetricsAccess, Readiness, metrics_app
from router.request.reading import build_read_options
from router.request.relay_path import RelayPath
from router.request.retry_budget import RetryBudget
from router.request.services import Identify, Services
from router.request.stages import build_request_path
from router.request.stored_responses import StoredResponseFinder
from router.telemetry.failed_attempts import FailedAttempts
from router.telemetry.metrics.exposition import PageForm
from router.telemetry.metrics.shared_scrape import SharedScrape

FEATURES: Sequence[tuple[str, Callable[[schema.Config], object]]] = (
    ("tenants.feature:TenantsFeature", lambda config: config.clients.identifies),
    ("aliases.feature:AliasesFeature", lambda config: config.models),
    ("autoscaling.feature:AutoscalingFeature", lambda config: True),
    ("adapters.feature:AdaptersFeature", lambda config: config.adapters),
    ("admission.feature:AdmissionFeature", lambda config: True),  # an experiment may compare rules
    ("pool.feature:PoolFeature", lambda config: config.pool),
    ("preload.feature:PreloadFeature", lambda config: config.preload.enabled),
    ("continuation.feature:ContinuationFeature", lambda config: config.limits.continuation_bytes),
    ("poison.feature:PoisonFeature", lambda config: True),
    ("tracing.feature:TracingFeature", lambda config: config.tracing),
    ("decision_log.feature:DecisionLogFeature", lambda config: config.records.decision_log),
)
"""All features, each with a function that returns whether it is configured; only configured features are loaded.
Stages of several features at one point of a request's path (`request/stages.py`) run in this order.
"""


def build_features(core: Core) -> dict[str, Feature]:
    """Build the features that are configured, by name. Raises `ConfigError`."""
    used = [where for where, is_configured in FEATURES if is_configured(core.config)]
    return {where.partition(".")[0]: resolve_name(f"router.features.{where}")(core) for where in used}


def build_services(core: Core, features: Iterable[Feature]) -> Services:
    """Build the services that proxied requests pass through."""
    config, limits = core.config, core.config.limits
    timeouts = UpstreamTimeouts(limits.first_byte_timeout_s, limits.idle_timeout_s)
    relay = RelayPath(
        core.upstreams,
        core.passthrough,
        build_header_rules(config),
        timeouts,
        core.scheduler.peers,
        core.stuck_engines,
        continuation_bytes=limits.continuation_bytes,
    )
    return Services(
        config=config,
        clock=core.clock,
        scheduler=core.scheduler,
        limiter=ConcurrencyLimiter(limits.concurrent, limits.body_budget_bytes),
        retry_budget=RetryBudget(limits.retry_ratio, limits.retry_burst),
        tokenization=core.tokenization,
        identify=build_identify(core),
        read_options=build_read_options(config, relays=True),
        large_body=asyncio.Lock(),
        data_path=relay,
        suspect=core.health.suspect,
        show=core.recent_records.add,
        metrics=core.metrics,
        failed_attempts=FailedAttempts(core.tasks),
        admin_tokens=AdminTokens(config.admin.tokens),
        stored_responses=StoredResponseFinder(core.scheduler, core.upstreams.fetch, core.clock),
        run_id=core.run_id,
        path=build_request_path([feature.path for feature in features]),
    )


def build_identify(core: Core) -> Identify | None:
    """Return the callable that identifies clients; None if clients are anonymous."""
    if core.client_keys is None:
        return None
    directory, wall = core.client_keys.directory, core.clock.wall
    return lambda call: directory.identify(call.fields, trusted=call.proxied, now_wall_s=wall())


def build_picker(core: Core, services: Services, readiness: Readiness, answers: AnswerLog) -> Listener | None:
    """Build the endpoint picker configured in `picker`, on the services of the proxy except for the data path; None
    if there is none. Raises `ConfigError` for certificate files that cannot be used.
    """
    config = core.config
    if config.picker is None:
        return None
    with needs_extra("picker", "picker"):
        from router.picker.health import PickerHealth
        from router.picker.server import PickerServer
        from router.request.picker_api import PickerApi
        from router.request.picker_path import PickerPath

    path = PickerPath(
        core.scheduler.fleet,
        core.passthrough,
        build_header_rules(config),
        answers,
        core.upstreams.credentials,
        core.metrics.on_moved,
        config.picker.fallbacks,
    )
    services = replace(services, data_path=path, read_options=build_read_options(config))
    api = PickerApi(services, testing=config.picker.testing)
    health = PickerHealth(readiness.unready_reason, lambda: readiness.stopping)
    return PickerServer(config, api, answers, health, core.clock, core.share)


def build_metrics_access(core: Core, render: Callable[[PageForm], Awaitable[bytes]]) -> MetricsAccess:
    scrape, config = SharedScrape(render, core.tasks, core.clock), core.config
    return MetricsAccess(scrape, config.metrics.token_hash, has_exemplars=config.tracing is not None)


def build_metrics_listener(core: Core, metrics: MetricsAccess) -> HttpListener | None:
    """Build the listener of the metrics; None if the public listener serves them."""
    where = core.config.metrics
    return None if where.port is None else build_listener(metrics_app(metrics), where.host, where.port, core.sockets)


def build_listener(app: FastAPI, host: str, port: int, sockets: ListeningSockets) -> HttpListener:
    """Build a listener that only the process on duty serves."""
    server = configure_server(AsgiHandler(app), ListenConfig(host=host, port=port))
    return HttpListener(server, share=SocketShare(sockets))
