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
from collections.abc import Set
from functools import partial
from pathlib import Path

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
from router.control.duty import Duty
from router.control.explain import Explain
from router.control.feature import Core
from router.control.key_secret import load_snapshot, resolve_key_secret
from router.control.live.feed import LiveFeed
from router.control.membership import Membership
from router.control.peers.answers import SharedAnswers
from router.control.peers.connect import LocalState, PeerParts, build_exchange, connect_peers
from router.control.peers.frames import Sender
from router.control.peers.instances import SharedInstances
from router.control.peers.scheduler import PeerScheduler
from router.control.status import Status
from router.control.workers.host_workers import describe_members
from router.control.workers.messages import Members, Query
from router.control.workers.metrics_merge import encode_families
from router.fleet.instance import InstanceState
from router.kvcache.block_keys import Keyring
from router.kvcache.memory_budget import MemoryBudget
from router.picker.answer_log import AnswerLog
from router.picker.rpc_listener import RpcListener
from router.proxy.asgi import AsgiHandler
from router.proxy.listener import HttpListener, configure_server, connection_capacity
from router.proxy.listening_sockets import ListeningSockets
from router.proxy.upstreams import Upstreams
from router.request.admin_tokens import AdminTokens
from router.request.concurrency import ConcurrencyLimiter
from router.request.ops_api import ops_app
from router.request.public_api import PublicApi, RequestApi
from router.request.retry_budget import RetryBudget
from router.request.services import Services
from router.request.stages import build_request_path, given
from router.request.stored_responses import StoredResponseFinder
from router.tasks import Tasks
from router.telemetry.audit_log import AuditLog
from router.telemetry.metrics.exposition import PageForm
from router.telemetry.metrics.page import MetricsPage
from router.telemetry.metrics.prometheus import Metrics
from router.telemetry.metrics.snapshot import ConnectionState
from router.telemetry.recent_records import RecentRecords
from router.wiring import WorkerRole

log = logging.getLogger("warmroute.app")

POLL_S = 0.02
STATIC = frozenset({"config"})  # sources of instances that every worker reads by itself


class App:
    """One router process: built from its configuration, running between `start` and `stop`.

    `file` is where the configuration was read, to be watched for changes. `role` is that of a worker among several;
    without one, this process is the only one. With `only_picker` the public listener serves health and metrics and no
    prompts. `sockets`: with those that were handed over to this process.
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
        self._started = self._stopping = self._open = False
        self._file = file
        self._role = role
        self._number = 0 if role is None else role.start.number  # of this process among those of its host
        self._duty = Duty(self._run_id, held=role is None)
        self._build_scheduler()
        self._build_feeds()
        self._build_control()
        self._build_features()
        self._build_status()
        self._build_listeners()

    def _build_scheduler(self) -> None:
        """Build what a decision needs: index and scheduler, token ids; and the exchange with peers."""
        config, clock, limits, role = self._config, self._clock, self._config.limits, self._role
        self._upstreams = Upstreams(connect_timeout_s=limits.connect_timeout_s, keepalive_s=limits.keepalive_s)
        saved = load_snapshot(config)
        self._secret = secret = resolve_key_secret(config, saved) if role is None else role.start.key_secret
        host = self._run_id if role is None else role.start.host
        near = None if role is None else role.network(config.workers)
        self._peers = peers = build_exchange(config, Sender(host, self._run_id), near, clock)
        self._keyring = keyring = Keyring(secret)
        self._memory = MemoryBudget(config.tokens.memory_bytes // config.workers)
        core = config, wiring.build_policy_set(config), keyring, clock
        self._scheduler = wiring.build_scheduler(*core, secret=secret, peers=peers, number=self._number)
        if saved is not None:
            wiring.restore_index(saved, secret, self._scheduler.indexer)
        self._snapshots = wiring.build_snapshots(config, secret, self._scheduler, self._tasks)
        self._tokenization = wiring.build_tokenization(config, keyring, self._upstreams, clock, self._memory)
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
        self._bootstrap = BootstrapClient(self._scheduler.peers, fetch, tasks, clock)

    def _build_control(self) -> None:
        """Build what an operator changes policies with, and what is kept and counted of requests."""
        scheduler, config = self._scheduler, self._config
        audit = AuditLog(config.admin.audit_file, writes=self._duty.held)
        file = self._file if self._duty.held else None
        self._recent_records = RecentRecords(config.records.keep)
        self._control = Control(scheduler, self._recent_records, audit, self._clock, file, self._duty)
        self._metrics = Metrics(lambda model: scheduler.fleet.resolve(model) is not None)

    def _build_features(self) -> None:
        """Build the features that are configured."""
        core = Core(
            config=self._config,
            clock=self._clock,
            tasks=self._tasks,
            run_id=self._run_id,
            key_secret=self._secret,
            upstreams=self._upstreams,
            sockets=self._sockets,
            keyring=self._keyring,
            memory=self._memory,
            scheduler=self._scheduler,
            membership=self._membership,
            discoveries=self._discoveries,
            recent_records=self._recent_records,
            metrics=self._metrics,
            control=self._control,
            duty=self._duty,
            peers=self._peers,
        )
        self._features = wiring.build_features(core)

    def _build_status(self) -> None:
        """Build what peers share of this process, and what reports its state."""
        config, scheduler, clock, role = self._config, self._scheduler, self._clock, self._role
        self._answers = AnswerLog(clock.now)  # that gateways log
        self._instances: SharedInstances | None = None  # None: this process is the only one
        parts: PeerParts | None = None
        if self._peers is not None and isinstance(scheduler, PeerScheduler):
            scheduler.suspect = self._health.suspect
            self._instances = SharedInstances(self._membership.update_source, self._duty, self._peers, self._tasks)
            more = [self._instances, *(part for feature in self._features.values() for part in feature.shared)]
            if config.picker is not None:
                more.append(SharedAnswers(self._answers, self._peers))
            local = LocalState(scheduler, self._control, self._recent_records, self._secret, more)
            parts = connect_peers(self._peers, local, self._tasks, clock)
        members = None
        if role is not None and parts is not None:
            members = lambda: describe_members(role.link.members, config.workers, parts.facts)  # noqa: E731
        self._status = Status(
            scheduler=scheduler,
            tokenization=self._tokenization,
            passthrough=self._passthrough,
            health=self._health,
            discoveries=self._discoveries,
            describe_sources=self._membership.describe_sources,
            recent_records=self._recent_records,
            control=self._control,
            clock=clock,
            run_id=self._run_id,
            features=self._features,
            peers=self._peers,
            host_records=None if parts is None else parts.records,
            host_workers=members,
        )

    def _build_listeners(self) -> None:
        """Build the public API and the admin API, each on its listener."""
        config, limits, fetch = self._config, self._config.limits, self._upstreams.fetch
        self._limiter = ConcurrencyLimiter(limits.concurrent, limits.body_budget_bytes)
        self._client_keys = wiring.build_client_keys(config, self._secret)
        tenants = None if self._client_keys is None else self._client_keys.directory
        features = self._features.values()
        services = Services(
            config=config,
            clock=self._clock,
            scheduler=self._scheduler,
            limiter=self._limiter,
            retry_budget=RetryBudget(limits.retry_ratio, limits.retry_burst),
            tokenization=self._tokenization,
            read_options=wiring.build_proxy_read_options(config),
            large_body=asyncio.Lock(),
            data_path=wiring.build_relay_path(config, self._upstreams, self._passthrough, self._scheduler.peers),
            suspect=self._health.suspect,
            show=self._recent_records.add,
            metrics=self._metrics,
            admin_tokens=AdminTokens(config.admin.tokens),
            stored_responses=StoredResponseFinder(self._scheduler, fetch, self._clock),
            run_id=self._run_id,
            path=build_request_path([feature.path for feature in features]),
        )
        metrics = wiring.build_metrics_access(config, self._scrape, self._tasks, self._clock)
        ops = ops_app(self.unready_reason, None if config.metrics.port is not None else metrics)
        api = AsgiHandler(ops) if self._only_picker else PublicApi(RequestApi(services, tenants), ops)
        parts = services, tenants, self._passthrough, self._upstreams, self.unready_reason
        served = self._sockets, self._answers, config.workers, self._number
        self._picker = wiring.build_picker(*parts, lambda: self._stopping, *served)
        connections = connection_capacity(limits.concurrent, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        server = configure_server(api, config.listen, connections=connections, stall_timeout_s=limits.idle_timeout_s)
        self._listener = HttpListener(server, sockets=self._sockets, processes=config.workers, number=self._number)
        reading = EngineTokenizer(fetch), wiring.build_read_options(config, want_source=True)
        names = next((feature.resolve_name for feature in features if feature.resolve_name is not None), None)
        explain = Explain(config, self._clock, self._scheduler, self._tokenization, *reading, tenants, names)
        self._live = LiveFeed(self._status, self._tasks)
        operator = admin_app(self._status, self._control, explain, self._live, config.admin.tokens)
        address = ListenConfig(host=config.admin.host, port=config.admin.port)
        self._admin_listener = HttpListener(configure_server(AsgiHandler(operator), address), sockets=self._sockets)
        self._metrics_listener = wiring.build_metrics_listener(config, metrics, self._sockets)

    @property
    def run_id(self) -> str:
        """Id of this run, with which the ids of its records begin."""
        return self._run_id

    @property
    def status(self) -> Status:
        """The status of this process, as the admin API shows it."""
        return self._status

    def metrics_page(self) -> MetricsPage:
        """Return what a scrape of this process shows now. Call it on the event loop's thread."""
        connections = ConnectionState(self._listener.connections, self._listener.refused)
        return MetricsPage(self._metrics, self._status.snapshot()._replace(connections=connections))

    @property
    def on_duty(self) -> bool:
        """Whether this process has the duties of its host."""
        return self._duty.held

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
        wakes = self._config.wake is not None  # requests for a model without an instance start one
        if not wakes and not any(each.may_serve for each in self._scheduler.fleet):
            return "no instance is ready"
        return None

    async def _scrape(self, form: PageForm) -> bytes:
        """Return the metrics page of all workers, or of this one where the supervisor does not answer."""
        page = None if self._role is None else await self._role.link.scrape(form)
        return await asyncio.to_thread(self.metrics_page().render, form) if page is None else page

    async def start(self, *, hold: bool = False, join: bool = True) -> None:
        """Start listeners, feeds and discovery. With `hold` connections are accepted from `open` on; without `join`
        other hosts are joined by `join_replicas`. Raises `ConfigError` when a port is not available.
        """
        for listener in (*self._shared_listeners, *self._duty_listeners):
            await listener.bind()
        for feature in self._features.values():
            feature.start()
        if self._role is not None:
            self._follow_members(self._role.link.members)
            self._role.link.on_members, self._role.link.answer = self._follow_members, self._answer
        if self._peers is not None:  # what is taken over counts for engines that join later
            await self._peers.start(learn=self._role is not None and self._role.start.learn)
            if join:
                await self.join_replicas()
        if self._duty.held:
            await self._take_duties()
            self._control.log_start()
            if self._peers is not None:
                await self._peers.listen()  # the duties may have come while this host was joined
        else:
            self._duty.when_taken(lambda: self._tasks.spawn("duties", self._take_over_duties()))
        if not hold:
            await self.open()
        background.start(self._control, self._scheduler, self._clock, self._tasks)
        if self._client_keys is not None:
            self._client_keys.start(self._tasks)
        self._health.start()
        self._polls.start()
        self._bootstrap.start()
        self._discover(STATIC)
        if self._duty.held:
            self._discover(self._discoveries.keys() - STATIC)
        self._started = True

    async def _take_duties(self) -> None:
        """Do from now on what one process of a host does (`Duty`). Raises ConfigError for a bad usage file."""
        for feature in self._features.values():
            feature.take_duties()
        self._control.audit.writes = True
        if self._config.watch and self._file is not None:
            self._tasks.supervise("files", partial(background.follow_files, self._control))
        if self._snapshots is not None:
            self._snapshots.start()

    async def _take_over_duties(self) -> None:
        """Take the duties of a worker that has ended, or stops."""
        if self._stopping:
            return
        log.info("this worker has the duties of this host from now on")
        if self._file is not None:
            await self._control.follow_file(self._file)
        await self._take_duties()
        self._discover(self._discoveries.keys() - STATIC)
        if self._open:
            for listener in self._duty_listeners:
                await listener.start()
        if self._peers is not None:
            await self._peers.listen()

    def _follow_members(self, members: Members) -> None:
        """Follow which workers live: their peers, who has the duties, and for whom to accept connections."""
        assert self._role is not None
        runs, held = {member.number: member.run for member in members.living}, self._duty.held
        self._duty.follow(runs.get(members.on_duty))
        if held and not self._duty.held:  # this worker stops
            for name, feature in self._features.items():
                self._tasks.spawn(f"duties of {name}", feature.leave_duties())
        if self._peers is not None:
            self._peers.follow_members(set(runs.values()) - {self._run_id})
        up = {member.number for member in members.living if member.up}
        for listener in self._shared_listeners:
            for number in set(range(self._config.workers)) - {self._number}:
                listener.serve_for(number, self._duty.held and number not in up)

    async def _answer(self, query: Query) -> bytes:
        """Answer the supervisor."""
        match query:
            case "page" | "counters":
                return await asyncio.to_thread(encode_families, self.metrics_page(), whole=query == "page")
            case "save_index":
                await self.save_index()
            case "release":
                await self.hand_over()
            case "reload":
                self.reload()
        return b""

    @property
    def _shared_listeners(self) -> list[HttpListener | RpcListener]:
        """Those on which every worker accepts."""
        return list(given((self._listener, self._picker)))

    @property
    def _duty_listeners(self) -> list[HttpListener | RpcListener]:
        """Those on which the process on duty accepts."""
        own = (feature.listener for feature in self._features.values())
        return list(given((self._admin_listener, self._metrics_listener, *own)))

    def _listeners(self) -> list[HttpListener | RpcListener]:
        return [*self._shared_listeners, *(self._duty_listeners if self._duty.held else ())]

    async def open(self) -> None:
        """Accept connections."""
        self._open = True
        for listener in self._listeners():
            await listener.start()

    async def join_replicas(self) -> None:
        """Connect to the routers of other hosts, if there are any. Raises `ConfigError` when the port is taken."""
        if self._peers is not None:
            await self._peers.join(listen=self._duty.held)

    def knows_engines(self) -> bool:
        """Return whether no engine is still joining, and one is ready."""
        states = [instance.state for instance in self._scheduler.fleet]
        return bool(states) and InstanceState.JOINING not in states and self.unready_reason() is None

    def knows_peers(self) -> bool:
        """Return whether this process exchanges what it knows with all other workers of its host."""
        return self._peers is None or self._peers.members <= set(self._peers.near_runs())

    def _discover(self, sources: Set[str]) -> None:
        """Follow these sources of instances."""
        for name in sources & self._discoveries.keys():
            self._tasks.supervise(f"discovery by {name}", partial(self._follow, name, self._discoveries[name]))

    async def _follow(self, name: str, discovery: Discovery) -> None:
        async for instances in discovery.watch():
            if self._instances is not None and name not in STATIC:
                self._instances.publish(name, instances)
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
        if self._snapshots is not None and self._duty.held:
            await self._snapshots.save()

    def release(self) -> None:
        """Accept no new connections from here on: other processes do, or nobody should."""
        for listener in (*self._shared_listeners, *self._duty_listeners):
            listener.stop_accepting()

    async def hand_over(self) -> None:
        """Leave all ports to a process that has the sockets, the one of replicas too."""
        self.release()
        if self._peers is not None:
            await self._peers.leave()

    async def leave_host(self) -> None:
        """Leave the ports to the next router: the supervisor is gone, and nobody gets the duties any more."""
        await self.hand_over()
        self._duty.follow(None)

    async def stop(self, idle_s: float = 0.0) -> None:
        """Stop within the grace time, in which requests in progress, and those that arrive all the same, may finish.
        `/ready` answers 503 at once, so that load balancers send no new requests. Each answer says that it is its
        connection's last; a client that is between two requests gets `idle_s` to send one more.
        """
        self._stopping = True
        for listener in self._listeners() if idle_s else []:
            listener.retire(idle_s)
        give_up_at = self._clock.now() + self._config.limits.grace_s
        while self._is_busy(idle_s) and self._clock.now() < give_up_at:  # noqa: ASYNC110  they end in many places
            await asyncio.sleep(POLL_S)
        for gateways in given((self._picker, *(feature.listener for feature in self._features.values()))):
            await gateways.stop(max(0.1, give_up_at - self._clock.now()))
        await self._listener.stop(max(0.1, give_up_at - self._clock.now()))
        self._live.close()
        await self._admin_listener.stop(0.5)
        if self._metrics_listener is not None:
            await self._metrics_listener.stop(0.5)
        await self._events.close()
        await self.save_index()
        for feature in reversed(self._features.values()):
            await feature.close()
        if self._peers is not None:
            await self._peers.close()
        await self._tasks.close()
        await self._control.audit.flush()
        self._tokenization.close()
        self._upstreams.close()

    def _is_busy(self, idle_s: float) -> bool:
        return bool(self._limiter.in_flight or (idle_s and self._listener.connections))
