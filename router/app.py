"""The composition root: builds all parts from the configuration, connects them, starts and stops them in order.

    start   listeners -> feeds -> discovery, whose instances are probed, asked what they serve, and followed
    stop    no longer ready -> open requests finish within the grace time -> feeds end, connections close

The only module that knows all parts. It decides nothing; a reader of the request path does not need it.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import secrets
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from router import wiring
from router.backends.discovery.discovery import Discovery
from router.backends.feeds.bootstrap import BootstrapClient
from router.backends.feeds.health import HealthProbe
from router.backends.feeds.kv_events import KvEventSubscriber
from router.backends.feeds.metrics import MetricsPoller
from router.backends.remote_tokenizer import EngineTokenizer
from router.clock import Clock, SystemClock
from router.config import schema
from router.config.sections.listeners import ListenConfig
from router.control import background
from router.control.api.admin import admin_app
from router.control.control import Control
from router.control.explain import Explain
from router.control.live.feed import LiveFeed
from router.control.membership import Membership
from router.control.replicas.connect import connect_replicas
from router.control.scaling import Scaling
from router.control.status import Status
from router.control.workers.admission import SyncedAdmission
from router.control.workers.follower import FollowerWorker, LocalState
from router.control.workers.leader import LeaderWorker
from router.control.workers.scheduler import SyncedScheduler
from router.fleet.instance import InstanceState
from router.kvcache import snapshots
from router.kvcache.block_keys import Keyring
from router.kvcache.memory_budget import MemoryBudget
from router.picker.rpc_listener import RpcListener
from router.proxy.asgi import AsgiHandler
from router.proxy.listener import HttpListener, configure_server, connection_capacity
from router.proxy.listening_sockets import ListeningSockets
from router.proxy.upstreams import Upstreams
from router.request.adapter_loading import build_adapter_loader
from router.request.admin_tokens import AdminTokens
from router.request.admission.waiting import AdmissionControl, AdmissionQueues
from router.request.concurrency import ConcurrencyLimiter
from router.request.model_names import build_model_names
from router.request.ops_api import ops_app
from router.request.public_api import PublicApi, RequestApi
from router.request.retry_budget import RetryBudget
from router.request.services import Services
from router.request.stored_responses import StoredResponseFinder
from router.tasks import Tasks
from router.telemetry.audit_log import AuditLog
from router.telemetry.metrics.prometheus import Metrics
from router.telemetry.metrics.snapshot import ConnectionState, RouterSnapshot
from router.telemetry.recent_records import RecentRecords
from router.wiring import WorkerRole

if TYPE_CHECKING:  # loaded where it is configured
    from router.control.wake import Wake

log = logging.getLogger("warmroute.app")

POLL_S = 0.02
WORKER_END_S = 2.5  # in which workers end the streams that outlived the grace time
STOP_IDLE_S = 1.0  # for a client that is between two requests, to send one more and learn that it is the last


class App:
    """One router process: built from its configuration, running between `start` and `stop`.

    `file` is where the configuration was read, to be watched for changes. `role` is that of a follower; without one,
    this process leads as many workers as the configuration says, or is the only one. With `only_picker` the public
    listener serves health and metrics and no prompts. `sockets`: with those that were handed over to this process.
    """

    def __init__(
        self,
        config: schema.Config,
        clock: Clock | None = None,
        file: Path | None = None,
        role: WorkerRole | None = None,
        *,
        only_picker: bool = False,
        sockets: ListeningSockets | None = None,
    ) -> None:
        self._config = config
        self._sockets = sockets or ListeningSockets()
        self._only_picker = only_picker
        self._clock = clock or SystemClock()
        self._run_id = secrets.token_hex(4)
        self._tasks = Tasks("router")
        self._started = self._stopping = False
        self._build_scheduler(role)
        self._build_feeds()
        self._build_control(file)
        self._build_status()
        self._build_listeners()

    def _build_scheduler(self, role: WorkerRole | None) -> None:
        """Build what a decision needs: index and scheduler, the shared pool, token ids."""
        config, clock, limits = self._config, self._clock, self._config.limits
        self._upstreams = Upstreams(connect_timeout_s=limits.connect_timeout_s, keepalive_s=limits.keepalive_s)
        saved = None if config.index.snapshot_file is None else snapshots.load(Path(config.index.snapshot_file))
        self._secret = secret = wiring.resolve_key_secret(config, saved) if role is None else role.secret
        if role is None and (config.workers > 1 or config.replicas is not None):
            role = WorkerRole(0, secret, LeaderWorker(config, secret, clock, self._tasks))
        self._role, worker = role, None if role is None else role.worker
        self._leader = worker if isinstance(worker, LeaderWorker) else None
        self._follower = worker if isinstance(worker, FollowerWorker) else None
        self._keyring = keyring = Keyring(secret)
        memory = MemoryBudget(config.tokens.memory_bytes)
        self._pool = wiring.build_kv_store(config, self._upstreams, clock, memory)
        policies = wiring.build_policy_set(config)
        self._scheduler = wiring.build_scheduler(config, policies, keyring, clock, self._pool, secret=secret, role=role)
        if saved is not None:
            wiring.restore_index(saved, secret, self._scheduler.indexer)
        self._leads = self._follower is None
        self._snapshots = wiring.build_snapshots(config, secret, self._scheduler, self._tasks) if self._leads else None
        self._tokenization = wiring.build_tokenization(config, keyring, self._upstreams, clock, memory)
        self._passthrough = wiring.build_token_id_passthrough(config, self._tokenization, self._upstreams, self._tasks)

    def _build_feeds(self) -> None:
        """Build what watches the engines, and connect it to the fleet's membership."""
        config, clock, tasks, fetch = self._config, self._clock, self._tasks, self._upstreams.fetch
        self._discoveries = wiring.build_discoveries(config.fleet, clock)
        core = self._scheduler, self._upstreams, wiring.build_tokenizer_proofs(self._tokenization, tasks, clock)
        self._membership = membership = Membership(*core, self._passthrough, list(self._discoveries))
        probe = self._upstreams.probe
        membership.health = self._health = HealthProbe(membership, probe, tasks, clock, config.fleet.health)
        membership.polls = self._polls = MetricsPoller(membership, fetch, tasks, clock, config.fleet.metrics)
        membership.events = self._events = KvEventSubscriber(
            self._scheduler.indexer, membership, tasks, clock, config.index.replay_timeout_s
        )
        self._recent_records = RecentRecords(config.records.keep, config.preload.prompt_bytes)
        leads = partial(wiring.leads_replicas, self._run_id, self._leader)
        loaded_from = self._keyring, self._pool, self._recent_records
        self._preloading = wiring.build_preloading(config, self._scheduler, *loaded_from, fetch, leads, tasks, clock)
        membership.warmup = None if self._preloading is None else self._preloading.warmup
        self._bootstrap = BootstrapClient(self._scheduler.peers, fetch, tasks, clock)

    def _build_control(self, file: Path | None) -> None:
        """Build what an operator changes policies with, and what is kept of past requests."""
        audit = AuditLog(self._config.admin.audit_file)
        self._control = Control(self._scheduler, self._recent_records, audit, self._clock, file)
        if self._leader is not None:
            self._control.wait_for_workers_with(self._leader.wait_until_applied)
        self._decision_log = wiring.build_decision_log(self._config, self._secret, self._run_id, self._clock)
        self._tracing = wiring.build_tracing(self._config, self._scheduler.fleet, self._run_id, self._clock)
        self._exports = [export for export in (self._decision_log, self._tracing) if export is not None]

    def _build_status(self) -> None:
        """Build admission control and all that reports: status, metrics, and this worker's part for the others."""
        config, scheduler, clock, follower = self._config, self._scheduler, self._clock, self._follower
        pooled, tenants = config.pool is not None, config.clients.identifies
        queues = AdmissionQueues(config.admission, scheduler, clock, self._on_wait_end, pooled=pooled, tenants=tenants)
        synced = None if follower is None else SyncedAdmission(config.admission, scheduler, clock, follower)
        self._admission: AdmissionControl = synced or queues
        scheduler.on_swap.append(lambda policy_set: self._admission.follow(policy_set))
        listed, wakes = config.clients.tenants, () if config.wake is None else config.wake.models
        self._metrics = Metrics(self._snapshot, lambda model: scheduler.fleet.resolve(model) is not None, listed)
        self._metering = wiring.build_metering(config, self._run_id, self._role, self._metrics, scheduler.fleet, clock)
        known = self._discoveries.values(), self._recent_records
        self._scaling = Scaling(scheduler.fleet, scheduler.working_sets, *known, wakes, clock)
        of_engines = self._pool, self._health, self._discoveries, self._membership.describe_sources
        self._status = Status(
            *(scheduler, self._tokenization, self._passthrough, *of_engines),
            recent_records=self._recent_records,
            control=self._control,
            decision_log=self._decision_log,
            clock=clock,
            run_id=self._run_id,
            leader=self._leader,
            admission=self._admission,
            preloading=self._preloading,
            metering=self._metering,
            scaling=self._scaling,
        )
        told = self._metrics.on_wake_end, self._scaling.waiting, self._leader or self._follower
        self._wake: Wake | None = None
        if config.wake is not None:
            from router.control.wake import build_wake

            self._wake = build_wake(config, scheduler.fleet, *told, self._tasks, clock)
        if self._role is not None and isinstance(scheduler, SyncedScheduler):
            local = LocalState(self._run_id, scheduler, self._recent_records, self._metrics, clock)
            scheduler.suspect = self._health.suspect
            if self._leader is not None:
                self._leader.attach(local, queues)
                connect_replicas(config, local, self._leader, self._control, queues, self._scaling.waiting)
            if follower is not None and synced is not None:
                follower.attach(local, synced)

    def _on_wait_end(self, model: str, queue: str, end: str, seconds: float) -> None:
        self._metrics.on_wait_end(model, queue, end, seconds)  # built after the queues, from a status that has these

    def _build_listeners(self) -> None:
        """Build the public API and the admin API, each on its listener."""
        config, limits, fetch = self._config, self._config.limits, self._upstreams.fetch
        self._limiter = ConcurrencyLimiter(limits.concurrent, limits.body_budget_bytes)
        self._client_keys = wiring.build_client_keys(config, self._secret)
        tenants = None if self._client_keys is None else self._client_keys.directory
        models = build_model_names(config, self._scheduler, self._clock, self._run_id)
        self._control.guard_splits([] if models is None else models.aliases.splits)
        services = Services(
            config=config,
            clock=self._clock,
            scheduler=self._scheduler,
            limiter=self._limiter,
            admission=self._admission,
            meter=self._metering.meter,
            retry_budget=RetryBudget(limits.retry_ratio, limits.retry_burst),
            tokenization=self._tokenization,
            kv_store=self._pool,
            read_options=wiring.build_proxy_read_options(config),
            large_body=asyncio.Lock(),
            data_path=wiring.build_relay_path(config, self._upstreams, self._passthrough, self._scheduler.peers),
            health=self._health,
            recent_records=self._recent_records,
            decision_log=self._decision_log,
            metrics=self._metrics,
            tracing=self._tracing,
            admin_tokens=AdminTokens(config.admin.tokens),
            waits=None if self._wake is None else self._wake.waits,
            run_id=self._run_id,
            models=models,
            stored_responses=StoredResponseFinder(self._scheduler, fetch, self._clock),
            adapters=build_adapter_loader(config, self._scheduler.fleet, fetch, self._tasks, self._clock),
        )
        render = self._role.worker.scrape if self._role is not None and config.workers > 1 else self._metrics.scrape
        metrics = wiring.build_metrics_access(config, render, self._tasks, self._clock)
        ops = ops_app(self.unready_reason, None if config.metrics.port is not None else metrics)
        api = AsgiHandler(ops) if self._only_picker else PublicApi(RequestApi(services, tenants), ops)
        parts = services, tenants, self._passthrough, self._upstreams, self.unready_reason
        self._picker = wiring.build_picker(*parts, lambda: self._stopping, self._sockets)
        connections = connection_capacity(limits.concurrent, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        server = configure_server(api, config.listen, connections=connections, stall_timeout_s=limits.idle_timeout_s)
        self._listener = HttpListener(server, sockets=self._sockets, processes=config.workers if self._leads else 1)
        reading = EngineTokenizer(fetch), wiring.build_read_options(config, want_source=True)
        explain = Explain(config, self._clock, self._scheduler, self._tokenization, *reading, tenants, models)
        self._live = LiveFeed(self._status, self._tasks)
        operator = admin_app(self._status, self._control, explain, self._live, config.admin.tokens)
        address = ListenConfig(host=config.admin.host, port=config.admin.port)
        self._admin_listener = HttpListener(configure_server(AsgiHandler(operator), address), sockets=self._sockets)
        self._metrics_listener = wiring.build_metrics_listener(config, metrics, self._sockets) if self._leads else None
        self._keda = wiring.build_keda(config, self._scaling, self._clock, self._sockets) if self._leads else None

    def _snapshot(self) -> RouterSnapshot:
        connections = ConnectionState(self._listener.connections, self._listener.refused)
        now, traced = self._status.snapshot(), None if self._tracing is None else self._tracing.stats
        wakes = now.wake if self._wake is None else self._wake.snapshot()
        return now._replace(connections=connections, tracing=traced, wake=wakes)

    @property
    def port(self) -> int:
        return self._listener.port

    @property
    def admin_port(self) -> int:
        return self._admin_listener.port

    @property
    def picker_port(self) -> int | None:
        """The port on which gateways ask; None: there is no picker."""
        return None if self._picker is None else self._picker.port

    @property
    def metrics_port(self) -> int:
        """The port that serves the metrics."""
        return self.port if self._metrics_listener is None else self._metrics_listener.port

    def unready_reason(self) -> str | None:
        """Return why this process should get no requests now; None when it should."""
        if self._stopping:
            return "stopping"
        if not self._started:
            return "starting"
        if self._wake is None and not any(each.may_serve for each in self._scheduler.fleet):  # else requests wake
            return "no instance is ready"
        return None

    async def start(self, *, hold: bool = False, join: bool = True) -> None:
        """Start listeners, feeds and discovery. With `hold`, and in a follower, connections are accepted from `open`
        on; without `join` replicas are joined by `join_replicas`. Raises `ConfigError` when a port is not available.
        """
        self._admission.follow(self._scheduler.selector.policy_set)
        if self._leads:
            for listener in self._listeners():
                await listener.bind()
            if join:
                await self.join_replicas()  # what it takes over counts for engines that join later
            if not hold:
                await self.open()
            background.start(self._control, self._scheduler, self._clock, self._tasks, watch=self._config.watch)
            self._scaling.start(self._tasks)
            if self._preloading is not None and self._preloading.copies is not None:
                self._preloading.copies.start()
        for export in self._exports:
            export.start()
        if self._client_keys is not None:
            self._client_keys.start(self._tasks)
        self._metering.start(self._tasks)
        if self._snapshots is not None:
            self._snapshots.start()
        self._pool.start()
        self._health.start()
        self._polls.start()
        self._bootstrap.start()
        for name, discovery in self._discoveries.items():
            self._tasks.supervise(f"discovery by {name}", partial(self._follow, name, discovery))
        self._started = True
        if self._leader is not None:
            self._leader.start(self._listener)

    def _listeners(self) -> list[HttpListener | RpcListener]:
        if not self._leads:
            return [self._listener]
        listeners = (self._admin_listener, self._metrics_listener, self._listener, self._picker, self._keda)
        return [listener for listener in listeners if listener is not None]

    async def open(self) -> None:
        """Accept connections."""
        for listener in self._listeners():
            await listener.start()

    async def join_replicas(self) -> None:
        """Start the exchange with other replicas, if there are any. Raises `ConfigError` when its port is taken."""
        if self._leader is not None:
            await self._leader.join_replicas()

    def knows_engines(self) -> bool:
        """Return whether no engine is still joining, and one is ready."""
        states = [instance.state for instance in self._scheduler.fleet]
        return bool(states) and InstanceState.JOINING not in states and self.unready_reason() is None

    async def _follow(self, name: str, discovery: Discovery) -> None:
        async for instances in discovery.watch():
            await self._membership.update_source(name, instances)

    def reload(self) -> None:
        """Apply what changed in the configuration files, as far as that needs no restart."""
        if not self._control.watched_paths():
            log.info("there is no configuration file to read again")
        elif not self._stopping:
            log.info("reading the configuration files again")
            self._tasks.spawn("reload", self._control.reload_files())

    async def save_index(self) -> None:
        """Write the index snapshot, if there is one."""
        if self._snapshots is not None:
            await self._snapshots.save()

    def release(self) -> None:
        """Accept no new connections from here on: other processes do, or nobody should."""
        for listener in self._listeners():
            listener.stop_accepting()

    async def hand_over(self) -> None:
        """Leave all ports to a process that has the sockets, the one of replicas too."""
        self.release()
        if self._leader is not None:
            await self._leader.leave_replicas()

    async def stop(self, idle_s: float = 0.0) -> None:
        """Stop within the grace time, in which requests in progress, and those that arrive all the same, may finish.
        `/ready` answers 503 at once, so that load balancers send no new requests. Each answer says that it is its
        connection's last; a client that is between two requests gets `idle_s` to send one more.
        """
        self._stopping = True
        if self._leader is not None:
            self._leader.announce_stop(idle_s)
        for listener in self._listeners() if idle_s else []:
            listener.retire(idle_s)
        give_up_at = self._clock.now() + self._config.limits.grace_s
        while self._is_busy(idle_s) and self._clock.now() < give_up_at:  # noqa: ASYNC110  they end in many places
            await asyncio.sleep(POLL_S)
        for gateways in filter(None, (self._picker, self._keda)):
            await gateways.stop(max(0.1, give_up_at - self._clock.now()))
        await self._listener.stop(max(0.1, give_up_at - self._clock.now()))
        if self._leader is not None:
            await self._leader.stop(max(0.1, give_up_at - self._clock.now()) + WORKER_END_S)
        self._live.close()
        await self._admin_listener.stop(0.5)
        if self._metrics_listener is not None:
            await self._metrics_listener.stop(0.5)
        await self._events.close()
        await self.save_index()
        await self._pool.close()
        await self._metering.close()
        await self._tasks.close()
        await self._control.audit.flush()
        for export in self._exports:
            await asyncio.to_thread(export.close)
        self._tokenization.close()
        self._upstreams.close()

    def _is_busy(self, idle_s: float) -> bool:
        return bool(self._limiter.in_flight or (idle_s and self._listener.connections))
