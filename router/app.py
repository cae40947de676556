"""The wiring: the only file that knows everyone. Config in, rooms built once, started and stopped in order.

    start   listeners, then feeds, then discovery: each instance it names is watched, asked who it is, and listened to
    stop    not ready any more -> streams finish within the grace time -> feeds end, connections close

Nothing is decided here, and nothing here is needed to understand how a request goes.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import secrets
import signal
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from pathlib import Path
from urllib.parse import urlsplit

from router.blocks.expected import Approximate, Expected
from router.blocks.index import Index
from router.blocks.keys import Keyring
from router.blocks.knowledge import Knowledge, Witness
from router.clock import Clock, SystemClock
from router.config import schema
from router.config.read import load_policies, read_client_keys
from router.control import guarding
from router.control.control import Control
from router.core import Core
from router.decide.arms import Regime
from router.decide.desk import Desk
from router.decide.policy import Policy, build_policies
from router.discovery.base import Discovery
from router.discovery.file import FileDiscovery
from router.discovery.static import StaticDiscovery
from router.explain import Explain
from router.feeds.bootstrap import Bootstrap
from router.feeds.health import Health
from router.feeds.kv_events import KvEvents
from router.feeds.metrics import MetricsPoll
from router.fleet.instances import Fleet, State
from router.ledger.audit import Audit
from router.ledger.jsonl import JsonLines
from router.ledger.prometheus import Metrics
from router.ledger.ring import Ring
from router.lobby.lobby import Lobby
from router.lobby.retries import RetryBudget
from router.lobby.tokens import AdminTokens
from router.members import Membership
from router.pool.mooncake import MooncakePool
from router.pool.none import NoPool
from router.prompt.read import ReadOptions
from router.proxy.headers import HeaderRules
from router.proxy.upstream import Upstreams
from router.report import Report
from router.route import Rooms
from router.tasks import Tasks
from router.tokens import local
from router.tokens.remote import Remote
from router.tokens.tokens import Tokens
from router.web.admin import admin_app
from router.web.listener import Listener, serve_config
from router.web.openai import Door
from router.web.ops import ops_app

log = logging.getLogger("warmroute.app")

LOOK_EVERY_S = 0.02


class App:
    """One router: built from its configuration, running between `start` and `stop`."""

    def __init__(self, config: schema.Config, clock: Clock | None = None, file: Path | None = None) -> None:
        self._config = config
        self._clock = clock = clock or SystemClock()
        limits, run_id = config.limits, secrets.token_hex(4)
        self._tasks = Tasks("router")
        self._upstreams = Upstreams(connect_timeout_s=limits.connect_timeout_s, keepalive_s=limits.keepalive_s)
        secret = secret_of(config)
        keyring = Keyring(secret)
        self._pool = build_pool(config, self._upstreams, clock)
        regime = Regime(built_policies(config), config.active, config.experiment)
        core = build_core(config, regime, keyring, clock, self._pool, secret=secret)
        self._tokens = build_tokens(config, keyring, self._upstreams, clock)
        members = Membership(core, self._upstreams, self._tokens, self._tasks)
        fetch = self._upstreams.fetch
        members.health = self._health = Health(members, fetch, self._tasks, clock, config.fleet.health)
        members.polls = self._polls = MetricsPoll(members, fetch, self._tasks, clock, config.fleet.metrics)
        members.events = self._events = KvEvents(core.knowledge, self._tasks, clock, config.index.replay_timeout_s)
        self._bootstrap = Bootstrap(core.peers, fetch, self._tasks, clock)
        ring = Ring(config.records.keep)
        self._discoveries = discoveries(config.fleet)
        audit = Audit(config.admin.audit_file)
        self._control = Control(core, ring, audit, clock, file)
        self._ledger = build_ledger(config, secret, run_id, clock)
        report = Report(
            core, self._tokens, self._pool, self._health, self._discoveries, ring, self._control, self._ledger, clock
        )
        metrics = Metrics(report.snapshot, lambda model: core.fleet.resolve(model) is not None)
        clients = read_client_keys(config.clients.keys_file) if config.clients.keys_file else None
        self._lobby = Lobby(limits.concurrent, limits.body_budget_bytes)
        reading, skimming = readings(config)
        rooms = Rooms(
            config=config,
            clock=clock,
            core=core,
            lobby=self._lobby,
            retries=RetryBudget(limits.retry_ratio, limits.retry_burst),
            tokens=self._tokens,
            pool=self._pool,
            reading=reading,
            skimming=skimming,
            header_rules=HeaderRules(config.edge.strip_headers, own_keys=clients is not None),
            upstreams=self._upstreams,
            health=self._health,
            ring=ring,
            ledger=self._ledger,
            metrics=metrics,
            admins=AdminTokens(config.admin.tokens),
            run_id=run_id,
        )
        explain = Explain(config, clock, core, self._tokens, fetch, reading)
        door = Door(rooms, ops_app(self.why_not_ready, metrics), clients)
        admin = schema.Listen(host=config.admin.host, port=config.admin.port)
        self._listener = Listener(serve_config(door, config.listen, stall_timeout_s=limits.idle_timeout_s))
        operator = admin_app(report, self._control, explain, config.admin.tokens)
        self._admin_listener = Listener(serve_config(operator, admin))
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

    def why_not_ready(self) -> str | None:
        if self._stopping:
            return "stopping"
        if not self._started:
            return "starting"
        if not any(instance.state is State.READY for instance in self._core.fleet):
            return "no instance is ready"
        return None

    async def start(self) -> None:
        """Raises `ConfigError` when a port cannot be had."""
        await self._admin_listener.start()
        await self._listener.start()
        if self._ledger is not None:
            self._ledger.start()
        guarding.start(self._control, self._core, self._clock, self._tasks, watch=self._config.watch)
        self._pool.start()
        self._health.start()
        self._polls.start()
        self._bootstrap.start()
        for name, discovery in self._discoveries.items():
            self._tasks.supervise(f"discovery by {name}", partial(self._follow, name, discovery))
        self._started = True

    async def _follow(self, name: str, discovery: Discovery) -> None:
        async for instances in discovery.watch():
            self._members.listed(name, instances)

    async def stop(self) -> None:
        """`/ready` says 503 from here on, so that no new traffic is sent; what is under way, and what comes all the
        same, has the grace time to finish.
        """
        self._stopping = True
        give_up_at = self._clock.now() + self._config.limits.grace_s
        while self._lobby.inside and self._clock.now() < give_up_at:  # noqa: ASYNC110  the lobby only counts
            await asyncio.sleep(LOOK_EVERY_S)
        await self._listener.stop(max(0.1, give_up_at - self._clock.now()))
        await self._admin_listener.stop(0.5)
        await self._events.close()
        await self._pool.close()
        await self._tasks.close()
        await self._control.audit.flush()
        if self._ledger is not None:
            await asyncio.to_thread(self._ledger.close)
        self._tokens.close()
        self._upstreams.close()


async def serve(
    config: schema.Config, when_ready: Callable[[App], None] = lambda app: None, file: Path | None = None
) -> None:
    """Runs a router until SIGTERM or SIGINT. `when_ready` is called once, when an instance can be sent to. `file` is
    where `config` was read: its changes take effect while the router runs, as far as they can.

    Raises `ConfigError` when a port cannot be had.
    """
    allow_open_files()
    app = App(config, file=file)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await app.start()
    spare_the_collector()
    log.info("listening on %s:%d, admin on %s:%d", config.listen.host, app.port, config.admin.host, app.admin_port)
    owner = Tasks("serve")
    owner.spawn("when ready", _when_ready(app, when_ready))
    await stop.wait()
    log.info("stopping: up to %g s for what is under way", config.limits.grace_s)
    await owner.close()
    await app.stop()


def allow_open_files() -> None:
    """Every rank takes four descriptors, every stream two: more than the 1,024 that many systems begin with."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def spare_the_collector() -> None:
    """Thousands of records and millions of index entries live long and hold no cycles. Looking through them after
    every 700 allocations, as CPython does by itself, cost a quarter of a small request's CPU.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


async def _when_ready(app: App, call: Callable[[App], None]) -> None:
    while app.why_not_ready() is not None:  # noqa: ASYNC110  many causes, one answer
        await asyncio.sleep(LOOK_EVERY_S)
    call(app)


def built_policies(config: schema.Config) -> dict[str, Policy]:
    """Every policy, built, so that a broken one is known at the start. Raises `ConfigError`."""
    return build_policies(load_policies(config))


def build_core(
    config: schema.Config,
    regime: Regime,
    keyring: Keyring,
    clock: Clock,
    witness: Witness | None = None,
    *,
    secret: int = 0,
) -> Core:
    index = config.index
    knowledge = Knowledge(
        Index(keyring, index.orphan_blocks),
        Expected(index.expected_ttl_s),
        Approximate(index.approximate_blocks, index.approximate_ttl_s),
        clock,
        witness,
    )
    desk = Desk(regime, seed=config.seed if config.seed is not None else secrets.randbits(64))
    return Core(
        Fleet(config.fleet),
        knowledge,
        desk,
        clock,
        config.limits.responses_kept,
        shared_pool=config.pool is not None,
        secret=secret,
    )


def readings(config: schema.Config) -> tuple[ReadOptions, ReadOptions]:
    """How prompts are read for policies that look at caches, and for those that do not."""
    strip, inject = frozenset(config.edge.strip_fields), config.usage == "inject"
    return ReadOptions(strip, inject, want_source=True), ReadOptions(strip, inject, want_source=False)


def build_ledger(config: schema.Config, secret: int, run_id: str, clock: Clock) -> JsonLines | None:
    ledger = config.records.ledger
    return None if ledger is None else JsonLines(ledger, secret, run_id, clock)


def build_pool(config: schema.Config, upstreams: Upstreams, clock: Clock) -> MooncakePool | NoPool:
    if config.pool is None:
        return NoPool()
    masters = [f"mooncake master {urlsplit(url).netloc}" for url in config.pool.masters]
    for name, url in zip(masters, config.pool.masters, strict=True):
        upstreams.add(name, url)
    return MooncakePool(config.pool, masters, upstreams.fetch, Tasks("pool"), clock)


def build_tokens(config: schema.Config, keyring: Keyring, upstreams: Upstreams, clock: Clock) -> Tokens:
    locals_ = {
        model: local.load(source, f"tokenizers.{model}", clock.wall)
        for model, source in config.tokenizers.items()
        if source.path is not None
    }
    return Tokens(config.tokens, locals_, keyring, Remote(upstreams.fetch), clock)


def discoveries(fleet: schema.Fleet) -> dict[str, Discovery]:
    found: dict[str, Discovery] = {}
    if fleet.instances:
        found["config"] = StaticDiscovery(fleet.instances)
    if fleet.file is not None:
        found["file"] = FileDiscovery(fleet.file, fleet.file_poll_s)
    return found


def secret_of(config: schema.Config) -> int:
    """What block keys are seeded with: 64 bits that clients cannot know."""
    name = config.index.key_secret_env
    secret = secrets.token_bytes() if name is None else os.fsencode(os.environ[name])
    return int.from_bytes(blake2b(secret, digest_size=8).digest(), "little")
