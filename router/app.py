"""The composition root: builds all parts from the configuration, connects them, starts and stops them in order.

    start   listeners -> feeds -> discovery, whose instances are probed, queried for their models, and followed
    stop    no longer ready -> open requests finish within the grace time -> feeds end, connections close

Only this module depends on all parts. It makes no decisions; a reader of the request path does not need it.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Sequence
from pathlib import Path

from router import wiring
from router.backends.remote_tokenizer import EngineTokenizer
from router.clock import Clock, SystemClock
from router.config import schema
from router.control.api.admin import admin_app
from router.control.core import Core, WorkerRole
from router.control.explain import Explain
from router.control.live.feed import LiveFeed
from router.control.peers.answers import SharedAnswers
from router.control.peers.parts import SharedPart
from router.control.status import Status
from router.control.workers.host_workers import describe_members
from router.control.workers.messages import Members
from router.errors import InternalError
from router.fleet.instance import InstanceState
from router.picker.answer_log import AnswerLog
from router.proxy.asgi import AsgiHandler
from router.proxy.listener import HttpListener, configure_server, connection_capacity
from router.proxy.listeners import Listener, Listeners
from router.proxy.listening_sockets import ListeningSockets
from router.request.ops_api import Readiness, ops_app
from router.request.public_api import PublicApi, RequestApi
from router.request.reading import build_read_options
from router.request.stages import given
from router.telemetry.metrics.exposition import PageForm
from router.telemetry.metrics.page import MetricsPage
from router.telemetry.metrics.snapshot import ConnectionState

log = logging.getLogger("warmroute.app")

POLL_S = 0.02


class App:
    """One router process: built from its configuration, running between `start` and `stop`.

    `file` is the path that the configuration was read from, to be watched for changes. `role` describes this worker
    among several; None if this process is the only one. With `only_picker` the public listener serves health and
    metrics but no prompts. `sockets` includes the sockets that were handed over to this process.
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
        state: bytes = b"",
    ) -> None:
        self.core = core = Core(config, clock or SystemClock(), file, role, sockets or ListeningSockets(), state)
        self.features = wiring.build_features(core)
        self._readiness = Readiness(core.scheduler.fleet, wakes=config.wake is not None)
        self._build_status()
        self._build_public_api(only_picker=only_picker)
        self._build_admin_api()
        self._listeners = Listeners(
            shared=list(given((self.listener, self._picker))),
            on_duty=list(given((self.admin_listener, self._metrics_listener, *self._feature_listeners))),
            has_duties=lambda: core.duty.held,
        )

    def _build_status(self) -> None:
        """Connect the core to its peers, and build `status`, which reports the state of this process."""
        core, role = self.core, self.core.role
        self._answers = AnswerLog(core.clock.now)  # the answers whose ends gateways log
        shared: list[SharedPart] = [part for feature in self.features.values() for part in feature.shared]
        if core.config.picker is not None and core.peers is not None:
            shared.append(SharedAnswers(self._answers, core.peers))
        parts = core.connect(shared)
        members = None
        if role is not None and parts is not None:
            members = lambda: describe_members(role.link.members, core.config.workers, parts.facts)  # noqa: E731
        self.status = Status(
            scheduler=core.scheduler,
            tokenization=core.tokenization,
            passthrough=core.passthrough,
            health=core.health,
            discoveries=core.discoveries,
            describe_sources=core.membership.describe_sources,
            recent_records=core.recent_records,
            control=core.control,
            faults=core.faults,
            clock=core.clock,
            run_id=core.run_id,
            config=core.config,
            started_wall_s=core.clock.wall(),
            features=self.features,
            peers=core.peers,
            host_records=None if parts is None else parts.records,
            host_workers=members,
        )

    def _build_public_api(self, *, only_picker: bool) -> None:
        """Build the services and listeners that clients, gateways and metrics scrapers call."""
        core, config, limits = self.core, self.core.config, self.core.config.limits
        self.services = services = wiring.build_services(core, self.features.values())
        metrics = wiring.build_metrics_access(core, self._scrape)
        self._metrics_listener = wiring.build_metrics_listener(core, metrics)
        ops = ops_app(self.unready_reason, metrics if self._metrics_listener is None else None)
        api = AsgiHandler(ops) if only_picker else PublicApi(RequestApi(services), ops)
        connections = connection_capacity(limits.concurrent, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        server = configure_server(api, config.listen, connections=connections, stall_timeout_s=limits.idle_timeout_s)
        self.listener = HttpListener(server, share=core.share)
        self._picker = wiring.build_picker(core, services, self._readiness, self._answers)

    def _build_admin_api(self) -> None:
        """Build the admin API and the live page, which operators use."""
        core, config = self.core, self.core.config
        reading = EngineTokenizer(core.upstreams.fetch), build_read_options(config, want_source=True)
        names = next(iter(given(feature.resolve_name for feature in self.features.values())), None)
        clients = None if core.client_keys is None else core.client_keys.directory
        explain = Explain(config, core.clock, core.scheduler, core.tokenization, *reading, clients, names)
        self.live = LiveFeed(self.status, core.tasks)
        admin = admin_app(self.status, core.control, explain, self.live, config.admin.tokens)
        self.admin_listener = wiring.build_listener(admin, config.admin.host, config.admin.port, core.sockets)

    @property
    def _feature_listeners(self) -> Sequence[Listener]:
        return given(feature.listener for feature in self.features.values())

    @property
    def on_duty(self) -> bool:
        """True while this process has the duties of its host."""
        return self.core.duty.held

    @property
    def port(self) -> int:
        return self.listener.port

    @property
    def admin_port(self) -> int:
        return self.admin_listener.port

    @property
    def picker_port(self) -> int | None:
        """The port on which gateways query the picker; None if there is no picker."""
        return None if self._picker is None else self._picker.port

    @property
    def metrics_port(self) -> int:
        """The port that serves the metrics."""
        return self.port if self._metrics_listener is None else self._metrics_listener.port

    def unready_reason(self) -> str | None:
        """Return why this process should receive no requests now; None if it is ready."""
        return self._readiness.unready_reason()

    def metrics_page(self) -> MetricsPage:
        """Return the metrics page of this process as of now. Call it on the event loop's thread."""
        connections = ConnectionState(self.listener.connections, self.listener.refused)
        return MetricsPage(self.core.metrics, self.status.snapshot()._replace(connections=connections))

    async def _scrape(self, form: PageForm) -> bytes:
        """Return the metrics page of all workers. Raises `InternalError` if the supervisor does not reply: the page of
        one worker would make every counter fall, which Prometheus takes for a restart.
        """
        if self.core.role is None:
            return await asyncio.to_thread(self.metrics_page().render, form)
        if (page := await self.core.role.link.scrape(form)) is None:
            raise InternalError("the supervisor, which sums the workers' metrics, does not reply; try again")
        return page

    async def start(self, *, hold: bool = False, join: bool = True) -> None:
        """Start listeners, feeds and discovery. With `hold`, connections are accepted only after `open`; without
        `join`, this host connects to other hosts only in `join_replicas`. Raises `ConfigError` when a port is not
        available.
        """
        core, role = self.core, self.core.role
        await self._listeners.bind()
        for feature in self.features.values():
            feature.start()
        if role is not None:
            self._follow_members(role.link.members)
            role.link.on_members = self._follow_members
        if core.peers is not None:  # the state taken over applies to engines that join later
            await core.peers.start(learn=role is not None and role.start.learn)
            if join:
                await self.join_replicas()
        if core.duty.held:
            await self._take_duties()
            core.control.log_start()
            if core.peers is not None:
                await core.peers.listen()  # this process may have taken the duties while it was joining
        else:
            core.duty.when_taken(lambda: core.tasks.spawn("duties", self._take_over_duties()))
        if not hold:
            await self.open()
        core.start()
        if core.duty.held:
            core.follow_sources()
        self._readiness.started = True

    async def _take_duties(self) -> None:
        """Take over the duties of this host (`Duty`). Raises ConfigError for a bad usage file."""
        for feature in self.features.values():
            feature.take_duties()
        await self.core.take_duties()

    async def _take_over_duties(self) -> None:
        """Take over the duties of a worker that has ended or is stopping."""
        core = self.core
        if self._readiness.stopping:
            return
        log.info("this worker has the duties of this host from now on")
        await self._take_duties()
        core.follow_sources()
        await self._listeners.take_duties()
        if core.peers is not None:
            await core.peers.listen()

    def _follow_members(self, members: Members) -> None:
        """Apply a new list of living workers: update the peers and the holder of the duties and, if on duty, accept
        connections for workers that are down.
        """
        core = self.core
        runs, held = {member.number: member.run for member in members.living}, core.duty.held
        core.duty.follow(runs.get(members.on_duty))
        if held and not core.duty.held:  # this worker is stopping
            for name, feature in self.features.items():
                core.tasks.spawn(f"duties of {name}", feature.leave_duties())
        if core.peers is not None:
            core.peers.follow_members(set(runs.values()) - {core.run_id})
        others = set(range(core.config.workers)) - {core.number}
        down = others - {member.number for member in members.living if member.up}
        self._listeners.serve_for(others - down, False)
        self._listeners.serve_for(down, core.duty.held)

    async def open(self) -> None:
        """Accept connections."""
        await self._listeners.open()

    async def join_replicas(self) -> None:
        """Connect to the routers of other hosts, if there are any. Raises `ConfigError` when the port is taken."""
        if self.core.peers is not None:
            await self.core.peers.join(listen=self.core.duty.held)

    def knows_engines(self) -> bool:
        """Return whether no engine is still joining and at least one is ready."""
        states = [instance.state for instance in self.core.scheduler.fleet]
        return bool(states) and InstanceState.JOINING not in states and self.unready_reason() is None

    def knows_peers(self) -> bool:
        """Return whether this process exchanges state with all other workers of its host."""
        peers = self.core.peers
        return peers is None or peers.members <= set(peers.near_runs())

    def reload(self) -> None:
        """Apply the changes of the configuration files that need no restart."""
        if not self.core.control.watched_paths():
            log.info("there is no configuration file to read again")
        elif not self._readiness.stopping:
            log.info("reading the configuration files again")
            self.core.tasks.spawn("reload", self.core.control.reload_files())

    async def prepare_successor(self) -> bytes:
        """Write the index snapshot, if one is configured. Return the state that operators have set."""
        return await self.core.prepare_successor()

    def release(self) -> None:
        """Stop accepting new connections: other processes accept them, or none should."""
        self._listeners.stop_accepting()

    async def hand_over(self) -> None:
        """Leave all ports, including the replicas port, to the process that now has the sockets."""
        self.release()
        await self.core.hand_over()

    async def leave_host(self) -> None:
        """Leave the ports to the next router, because the supervisor is gone; no worker receives the duties any
        more.
        """
        await self.hand_over()
        self.core.duty.follow(None)

    async def stop(self, idle_s: float = 0.0) -> None:
        """Stop within the grace time, in which requests in flight, and requests that still arrive, may finish.
        `/ready` returns 503 at once, so that load balancers send no new requests. Each response announces that it
        is the last one on its connection; a client that is between two requests has `idle_s` to send one more.
        """
        core, now = self.core, self.core.clock.now
        self._readiness.stopping = True
        if idle_s:
            self._listeners.retire(idle_s)
        give_up_at = now() + core.config.limits.grace_s
        while self._is_busy(idle_s) and now() < give_up_at:  # noqa: ASYNC110  they end in many places
            await asyncio.sleep(POLL_S)
        for listener in given((self._picker, *self._feature_listeners, self.listener)):
            await listener.stop(max(0.1, give_up_at - now()))
        self.live.close()
        for listener in given((self.admin_listener, self._metrics_listener)):
            await listener.stop(0.5)
        await core.events.close()
        await core.save_index()
        for feature in reversed(self.features.values()):
            await feature.close()
        await core.close()

    def _is_busy(self, idle_s: float) -> bool:
        return bool(self.services.limiter.in_flight or (idle_s and self.listener.connections))
