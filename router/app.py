"""The wiring: the only file that knows everyone. Config in, rooms built once, started and stopped in order.

    start   listeners, then feeds, then discovery: each instance it names is watched, asked who it is, and listened to
    stop    not ready any more -> streams finish within the grace time -> feeds end, connections close

Nothing is decided here, and nothing here is needed to understand how a request goes.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import secrets
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

from router.backends.discovery.base import Discovery
from router.backends.feeds.bootstrap import BootstrapClient
from router.backends.feeds.health import HealthProbe
from router.backends.feeds.kv_events import KvEventSubscriber
from router.backends.feeds.metrics import MetricsPoller
from router.clock import Clock, SystemClock
from router.config import schema
from router.config.reader import read_client_keys
from router.config.sections.listeners import ListenConfig
from router.control import background
from router.control.api.admin import admin_app
from router.control.control import Control
from router.control.explain import Explain
from router.control.membership import Membership
from router.control.status import Status
from router.control.workers.follower import FollowerWorker
from router.control.workers.local_state import LocalState
from router.control.workers.role import WorkerRole, create_leader_role
from router.control.workers.scheduler import SyncedScheduler
from router.fleet.instance import InstanceState
from router.kvcache import snapshots
from router.kvcache.block_keys import Keyring
from router.kvcache.memory_budget import MemoryBudget
from router.proxy.headers import HeaderRules
from router.proxy.listener import HttpListener, check_port_free, configure_server
from router.proxy.upstreams import Upstreams
from router.request.admin_tokens import AdminTokens
from router.request.admission.waiting import AdmissionQueues
from router.request.concurrency import ConcurrencyLimiter
from router.request.public_api import PublicApi, ops_app
from router.request.retry_budget import RetryBudget
from router.request.services import Services
from router.scheduling.experiments.policy_set import PolicySet
from router.tasks import Tasks
from router.telemetry.audit_log import AuditLog
from router.telemetry.metrics.prometheus import Metrics
from router.telemetry.recent_records import RecentRecords
from router.wiring import (
    build_configured_policies,
    build_decision_log,
    build_discoveries,
    build_kv_store,
    build_read_options,
    build_scheduler,
    build_snapshots,
    build_token_id_passthrough,
    build_tokenization,
    resolve_key_secret,
    restore_index,
)

log = logging.getLogger("warmroute.app")

LOOK_EVERY_S = 0.02
KNOWN_WITHIN_S = 5.0  # the engines, by a worker that follows; later, one of them is enough


class App:
    """One router, or one worker of it: built from its configuration, running between `start` and `stop`. `seat` is a
    follower's; without one, it leads as many workers as the configuration says, or is the only one.
    """

    def __init__(
        self,
        config: schema.Config,
        clock: Clock | None = None,
        file: Path | None = None,
        seat: WorkerRole | None = None,
    ) -> None:
        self._config = config
        self._clock = clock = clock or SystemClock()
        limits, run_id = config.limits, secrets.token_hex(4)
        self._tasks = Tasks("router")
        self._upstreams = Upstreams(connect_timeout_s=limits.connect_timeout_s, keepalive_s=limits.keepalive_s)
        saved = None if config.index.snapshot_file is None else snapshots.load(Path(config.index.snapshot_file))
        secret = resolve_key_secret(config, saved) if seat is None else seat.secret
        seat = seat or create_leader_role(config, secret, clock, self._tasks)
        self._leader, self._follower = (None, None) if seat is None else (seat.leader, seat.follower)
        keyring = Keyring(secret)
        memory = MemoryBudget(config.tokens.memory_bytes)
        self._pool = build_kv_store(config, self._upstreams, clock, memory)
        regime = PolicySet(build_configured_policies(config), config.active, config.experiment)
        core = build_scheduler(config, regime, keyring, clock, self._pool, secret=secret, seat=seat)
        if saved is not None:
            restore_index(saved, secret, core.indexer)
        self._snapshots = build_snapshots(config, secret, core, self._tasks) if self._follower is None else None
        self._tokens = build_tokenization(config, keyring, self._upstreams, clock, memory)
        handing = build_token_id_passthrough(config, self._tokens, self._upstreams, self._tasks)
        members = Membership(core, self._upstreams, self._tokens, handing, self._tasks)
        fetch = self._upstreams.fetch
        members.health = self._health = HealthProbe(members, fetch, self._tasks, clock, config.fleet.health)
        members.polls = self._polls = MetricsPoller(members, fetch, self._tasks, clock, config.fleet.metrics)
        members.events = self._events = KvEventSubscriber(
            core.indexer, self._tasks, clock, config.index.replay_timeout_s
        )
        self._bootstrap = BootstrapClient(core.peers, fetch, self._tasks, clock)
        ring = RecentRecords(config.records.keep)
        self._discoveries = build_discoveries(config.fleet)
        audit = AuditLog(config.admin.audit_file)
        self._control = Control(core, ring, audit, clock, file)
        self._decision_log = build_decision_log(config, secret, run_id, clock)
        waiting = AdmissionQueues(
            config.admission,
            core,
            clock,
            lambda *told: metrics.on_wait_end(*told),  # made below, of what is known of this
            share=1 / config.workers,
            pooled=config.pool is not None,
        )
        report = Status(
            core,
            self._tokens,
            handing,
            self._pool,
            self._health,
            self._discoveries,
            ring,
            self._control,
            self._decision_log,
            clock,
            run_id,
            self._leader,
            waiting,
        )
        metrics = Metrics(report.snapshot, lambda model: core.fleet.resolve(model) is not None)
        if seat is not None and isinstance(core, SyncedScheduler):
            seat.others.take(LocalState(run_id, core, ring, metrics))
        if self._leader is not None:
            self._control.spreads(self._leader.everywhere)
        clients = read_client_keys(config.clients.keys_file) if config.clients.keys_file else None
        self._limiter = ConcurrencyLimiter(limits.concurrent, limits.body_budget_bytes)
        reading, skimming = build_read_options(config)
        rooms = Services(
            config=config,
            clock=clock,
            scheduler=core,
            limiter=self._limiter,
            admission=waiting,
            retry_budget=RetryBudget(limits.retry_ratio, limits.retry_burst),
            tokenization=self._tokens,
            passthrough=handing,
            kv_store=self._pool,
            full_read=reading,
            light_read=skimming,
            header_rules=HeaderRules(config.edge.strip_headers, own_keys=clients is not None),
            upstreams=self._upstreams,
            health=self._health,
            recent_records=ring,
            decision_log=self._decision_log,
            metrics=metrics,
            admin_tokens=AdminTokens(config.admin.tokens),
            run_id=run_id,
        )
        explain = Explain(config, clock, core, self._tokens, fetch, reading)
        api = PublicApi(
            rooms, ops_app(self.unready_reason, (seat.others if seat is not None else metrics).scrape), clients
        )
        admin = ListenConfig(host=config.admin.host, port=config.admin.port)
        public = configure_server(api, config.listen, stall_timeout_s=limits.idle_timeout_s)
        self._listener = HttpListener(public, shared=seat is not None)
        operator = admin_app(report, self._control, explain, config.admin.tokens)
        self._admin_listener = HttpListener(configure_server(operator, admin))
        self._members = members
        self._core = core
        self._stopping = False
        self._started = False

    @property
    def port(self) -> int:
        return self._listener.port

    @property
    def admin_port(self) -> int:
        return self._admin_listener.port

    def unready_reason(self) -> str | None:
        if self._stopping:
            return "stopping"
        if not self._started:
            return "starting"
        if not any(instance.state is InstanceState.READY for instance in self._core.fleet):
            return "no instance is ready"
        return None

    async def start(self) -> None:
        """Raises `ConfigError` when a port cannot be had."""
        if self._follower is None:
            if self._leader is not None:
                check_port_free(self._config.listen.host, self._config.listen.port)
            await self._admin_listener.start()
            await self._listener.start()
            background.start(self._control, self._core, self._clock, self._tasks, watch=self._config.watch)
        if self._decision_log is not None:
            self._decision_log.start()
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
            self._leader.start(self.port)
        if self._follower is not None:
            self._tasks.spawn("open", self._open(self._follower))

    async def _open(self, follower: FollowerWorker) -> None:
        """A follower listens when it knows the engines: until then, others answer better."""
        give_up_at = self._clock.now() + KNOWN_WITHIN_S
        while not self._knows_engines() and (self._clock.now() < give_up_at or self.unready_reason() is not None):  # noqa: ASYNC110
            await asyncio.sleep(LOOK_EVERY_S)
        await self._listener.start()
        follower.up()

    def _knows_engines(self) -> bool:
        states = [instance.state for instance in self._core.fleet]
        return bool(states) and InstanceState.JOINING not in states and self.unready_reason() is None

    async def _follow(self, name: str, discovery: Discovery) -> None:
        async for instances in discovery.watch():
            self._members.listed(name, instances)

    def refuse(self) -> None:
        """No new connections from here on, as far as that is known."""
        self._listener.stop_accepting()

    async def stop(self) -> None:
        """`/ready` says 503 from here on, so that no new traffic is sent; what is under way, and what comes all the
        same, has the grace time to finish.
        """
        self._stopping = True
        if self._leader is not None:
            self._leader.stopping()
        give_up_at = self._clock.now() + self._config.limits.grace_s
        while self._limiter.in_flight and self._clock.now() < give_up_at:  # noqa: ASYNC110  the lobby only counts
            await asyncio.sleep(LOOK_EVERY_S)
        await self._listener.stop(max(0.1, give_up_at - self._clock.now()))
        if self._leader is not None:
            await self._leader.stop(max(0.1, give_up_at - self._clock.now()))
        await self._admin_listener.stop(0.5)
        await self._events.close()
        if self._snapshots is not None:
            await self._snapshots.save()
        await self._pool.close()
        await self._tasks.close()
        await self._control.audit.flush()
        if self._decision_log is not None:
            await asyncio.to_thread(self._decision_log.close)
        self._tokens.close()
        self._upstreams.close()


async def serve(
    config: schema.Config, when_ready: Callable[[App], None] = lambda app: None, file: Path | None = None
) -> None:
    """Runs a router until SIGTERM or SIGINT. `when_ready` is called once, when an instance can be sent to. `file` is
    where `config` was read: its changes take effect while the router runs, as far as they can.

    Raises `ConfigError` when a port cannot be had.
    """
    raise_open_file_limit()
    app = App(config, file=file)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await app.start()
    tune_garbage_collector()
    log.info("listening on %s:%d, admin on %s:%d", config.listen.host, app.port, config.admin.host, app.admin_port)
    owner = Tasks("serve")
    owner.spawn("when ready", _when_ready(app, when_ready))
    await stop.wait()
    log.info("stopping: up to %g s for what is under way", config.limits.grace_s)
    await owner.close()
    await app.stop()


def raise_open_file_limit() -> None:
    """Every rank takes four descriptors, every stream two: more than the 1,024 that many systems begin with."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def tune_garbage_collector() -> None:
    """Thousands of records and millions of index entries live long and hold no cycles. Looking through them after
    every 700 allocations, as CPython does by itself, cost a quarter of a small request's CPU.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


async def _when_ready(app: App, call: Callable[[App], None]) -> None:
    while app.unready_reason() is not None:  # noqa: ASYNC110  many causes, one answer
        await asyncio.sleep(LOOK_EVERY_S)
    call(app)
