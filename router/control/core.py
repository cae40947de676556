"""The core of one router process: the parts that requests, features and both APIs are built on.

Its methods build, in order, the parts that a decision needs, the parts that follow the fleet, and the parts that an
operator uses to change policies. If there are peers, `connect` then shares the core's state, and the state of
features, with them.
"""

from __future__ import annotations

import logging
import secrets
import socket
from collections.abc import Iterable, Set
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from router.backends.discovery.discovery import Discovery, StaticDiscovery
from router.backends.discovery.file import FileDiscovery
from router.backends.feeds.bootstrap import BootstrapClient
from router.backends.feeds.health import HealthProbe
from router.backends.feeds.jitter import Jitter
from router.backends.feeds.kv_events import KvEventSubscriber
from router.backends.feeds.metrics import MetricsPoller
from router.backends.kv_store import KvStore, NoKvStore
from router.backends.remote_tokenizer import EngineTokenizer
from router.backends.token_ids.passthrough import TokenIdPassthrough
from router.backends.token_ids.proofs import TokenizerProofs
from router.backends.token_ids.support import TokenIdSupport
from router.backends.vllm.disaggregation import PARAMS
from router.clock import Clock
from router.config import schema
from router.config.reader import load_policies
from router.control import background
from router.control.control import Control
from router.control.duty import Duty
from router.control.fault_watch import FaultWatch
from router.control.key_secret import load_snapshot, resolve_key_secret
from router.control.membership import Membership
from router.control.operator_state import (
    OperatorState,
    OperatorStateFile,
    decode_state,
    encode_state,
    find_state_file,
    read_state,
)
from router.control.peers.connect import LocalState, PeerParts, build_exchange, connect_peers
from router.control.peers.exchange import HostNetwork, PeerExchange
from router.control.peers.frames import Sender
from router.control.peers.instances import SharedInstances
from router.control.peers.parts import SharedPart
from router.control.peers.scheduler import PeerScheduler
from router.control.workers.messages import StartWorker
from router.control.workers.supervisor_link import SupervisorLink
from router.fleet.fleet import Fleet
from router.kvcache import snapshots
from router.kvcache.block_keys import Keyring
from router.kvcache.index import BlockIndex
from router.kvcache.indexer import KvIndexer
from router.kvcache.memory_budget import MemoryBudget
from router.kvcache.snapshot_format import SavedIndex
from router.kvcache.speculative import ApproximateBlocks, SpeculativeBlocks
from router.prompt.tokenization.model_folder import load_all
from router.prompt.tokenization.tokenization import Tokenization
from router.proxy.listening_sockets import ListeningSockets, SocketShare
from router.proxy.upstreams import Upstreams
from router.request.stuck_engines import StuckEngines
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.policy.admission_rules import check_arm_rules
from router.scheduling.policy.policy import Policy, build_policies
from router.scheduling.scheduler import Scheduler
from router.scheduling.selector import Selector
from router.tasks import Tasks
from router.telemetry.audit_log import AuditLog
from router.telemetry.metrics.prometheus import Metrics
from router.telemetry.recent_records import RecentRecords
from router.tenants.isolation import derive_salt_key

if TYPE_CHECKING:
    from router.backends.client_keys import ClientKeys

log = logging.getLogger("warmroute.app")

STATIC = frozenset({"config"})  # sources of instances that every worker reads by itself


class WorkerRole(NamedTuple):
    """This process as one worker among several: the supervisor's start message, and the link to the supervisor."""

    start: StartWorker
    link: SupervisorLink


class Core:
    """The parts of one process. `file` is the path that the configuration was read from; `role` is None if this
    process is the only one. `state` is what operators had set at the router that this one replaces, as bytes; empty:
    it is read from the file beside the audit log. Raises `ConfigError`.
    """

    def __init__(
        self,
        config: schema.Config,
        clock: Clock,
        file: Path | None,
        role: WorkerRole | None,
        sockets: ListeningSockets,
        state: bytes = b"",
    ) -> None:
        self.config = config
        self.clock = clock
        self.file = file
        self.role = role
        self.sockets = sockets
        self.run_id = secrets.token_hex(4)  # the ids of this process's records begin with this
        self.number = 0 if role is None else role.start.number  # of this process among those of its host
        self.tasks = Tasks("router")
        self.duty = Duty(self.run_id, held=role is None)
        self._build_scheduler()
        self._build_fleet()
        self._build_control()
        self._restore_operator_state(state if role is None else role.start.state)
        self.kv_store: KvStore = NoKvStore()  # replaced by the feature that has a store
        self._instances: SharedInstances | None = None  # None: this process is the only one
        self._given: OperatorState | None = None  # what a successor was handed; None: nothing
        self._is_replaced = False

    def _build_scheduler(self) -> None:
        """Build the parts that a decision needs (index, scheduler, token ids), and the exchange with peers."""
        config, clock, limits, role = self.config, self.clock, self.config.limits, self.role
        self.upstreams = Upstreams(connect_timeout_s=limits.connect_timeout_s, keepalive_s=limits.keepalive_s)
        saved = load_snapshot(config)
        self.key_secret = resolve_key_secret(config, saved) if role is None else role.start.key_secret
        host, near = self.run_id, None
        if role is not None:
            started = role.start
            host, near = started.host, HostNetwork(started.name, started.peer_secret, self.number, config.workers)
        self.peers: PeerExchange | None = build_exchange(config, Sender(host, self.run_id), near, clock)
        self.keyring = Keyring(self.key_secret)
        parts = config, build_policy_set(config), self.keyring, clock
        self.memory = MemoryBudget(config.tokens.memory_bytes // config.workers)  # for the caches of prompts
        self.scheduler = build_scheduler(
            *parts, secret=self.key_secret, peers=self.peers, number=self.number, memory=self.memory
        )
        if saved is not None:
            restore_index(saved, self.key_secret, self.scheduler.indexer)
        self.tokenization = build_tokenization(config, self.keyring, self.upstreams, clock, self.memory)
        self.passthrough = build_token_id_passthrough(config, self.tokenization, self.upstreams, self.tasks)

    def _build_fleet(self) -> None:
        """Build the feeds that follow the engines, and connect them to the fleet's membership."""
        config, clock, tasks, fetch = self.config, self.clock, self.tasks, self.upstreams.fetch
        self.stuck_engines = StuckEngines(self.scheduler.fleet, clock)
        self.discoveries = build_discoveries(config.fleet, clock)
        proofs = TokenizerProofs(self.tokenization, tasks, clock)
        self.tokenization.on_miscount = proofs.on_miscount
        known = self.scheduler, self.upstreams, proofs, self.passthrough
        self.membership = membership = Membership(*known, list(self.discoveries))
        membership.health = self.health = HealthProbe(
            membership, self.upstreams.probe, tasks, clock, config.fleet.health
        )
        membership.polls = self.polls = MetricsPoller(membership, fetch, tasks, clock, config.fleet.metrics)
        membership.events = self.events = KvEventSubscriber(
            self.scheduler.indexer, membership, tasks, clock, config.index.replay_timeout_s
        )
        self.bootstrap = BootstrapClient(self.scheduler.peers, fetch, tasks, clock)

    def _build_control(self) -> None:
        """Build the control plane, through which an operator changes policies, and the records and metrics of
        requests.
        """
        config, scheduler = self.config, self.scheduler
        audit = AuditLog(config.admin.audit_file, writes=self.duty.held)
        self.recent_records = RecentRecords(config.records.keep)
        self.control = Control(scheduler, self.recent_records, audit, self.clock, self.duty)
        self.faults = FaultWatch(scheduler, self.health, config, self.clock, self.duty)
        fleet = scheduler.fleet
        self.metrics = Metrics(
            knows_model=lambda model: fleet.resolve(model) is not None,
            knows_engine=lambda engine: fleet.get(engine) is not None,
        )
        scheduler.on_left.append(lambda target: self.metrics.on_engine_left(target.rpartition("/")[0]))
        self.client_keys = build_client_keys(config, self.key_secret)
        self.snapshots: snapshots.Snapshots | None = None  # None: there are none
        if (saved_at := config.index.snapshot_file) is not None:
            self.snapshots = snapshots.Snapshots(
                Path(saved_at), config.index.snapshot_every_s, self.key_secret, scheduler.indexer, self.tasks
            )

    def _restore_operator_state(self, state: bytes) -> None:
        """Put in force what operators had set before this process, and follow what they set from now on."""
        file, source = find_state_file(self.config.admin.audit_file), "the state of the router that ran here"
        self.operator_state: OperatorStateFile | None = None  # None: a restart starts with the configuration alone
        if file is not None:
            self.operator_state = OperatorStateFile(file, self.control.collect_state)
            if not state:
                state, source = read_state(file), str(file)
        self.control.restore(decode_state(state, source))
        found = self.control.collect_state().in_words
        if found and self.number == 0:  # one of the workers
            log.warning("kept from before: %s", ", ".join(found))
        if (kept := self.operator_state) is not None:
            self.scheduler.drains.on_change = kept.wake
            self.scheduler.on_swap.append(lambda policy_set: kept.wake())

    @property
    def share(self) -> SocketShare:
        """The sockets of the addresses that all processes of this host serve."""
        return SocketShare(self.sockets, self.config.workers, self.number)

    def leads(self) -> bool:
        """Return whether this process does the work that only one of the processes in front of the fleet does."""
        return self.duty.held and (self.peers is None or self.peers.is_first_host())

    def connect(self, more: Iterable[SharedPart]) -> PeerParts | None:
        """Share the state of this process, and `more`, with its peers. Return the parts that others use; None if
        there are no peers.
        """
        scheduler = self.scheduler
        if self.peers is None or not isinstance(scheduler, PeerScheduler):
            return None
        scheduler.suspect = self.health.suspect
        self._instances = SharedInstances(self.membership.update_source, self.duty, self.peers, self.tasks)
        parts = [self._instances, *more]
        local = LocalState(scheduler, self.control, self.recent_records, self.key_secret, parts)
        return connect_peers(self.peers, local, self.tasks, self.clock)

    def start(self) -> None:
        """Start what runs in every process: the feeds of the engines, and the sources that each process reads."""
        background.start(self.control, self.scheduler, self.clock, self.tasks)
        if self.client_keys is not None:
            self.client_keys.start(self.tasks)
        self.health.start()
        self.tasks.supervise("stuck", self.stuck_engines.run)
        self.tasks.supervise("faults", self.faults.run)
        self.polls.start()
        self.bootstrap.start()
        self._follow_sources(STATIC)

    async def take_duties(self) -> None:
        """Start what one process of a host does for all: write the audit log and index snapshots, apply changes of
        the configuration files.
        """
        self.control.audit.writes = True
        if self.operator_state is not None:
            self.tasks.supervise("operator state", self.operator_state.run)
            self.operator_state.wake()
        if self.file is not None:
            await self.control.follow_file(self.file)
            if self.config.watch:
                self.tasks.supervise("files", partial(background.follow_files, self.control))
        if self.snapshots is not None:
            self.snapshots.start()

    def follow_sources(self) -> None:
        """Follow the sources of instances that one process of a host reads for all."""
        self._follow_sources(self.discoveries.keys() - STATIC)

    def _follow_sources(self, names: Set[str]) -> None:
        for name in names & self.discoveries.keys():
            self.tasks.supervise(f"discovery by {name}", partial(self._follow, name, self.discoveries[name]))

    async def _follow(self, name: str, discovery: Discovery) -> None:
        async for instances in discovery.watch():
            if self._instances is not None and name not in STATIC:
                self._instances.publish(name, instances)
            await self.membership.update_source(name, instances)

    async def save_index(self) -> None:
        """Write the index snapshot, if one is configured and this process has the duties."""
        if self.snapshots is not None and self.duty.held:
            await self.snapshots.save()

    async def prepare_successor(self) -> bytes:
        """Write the index snapshot, if one is configured. Return the state that operators have set."""
        await self.save_index()
        self._given = self.control.collect_state()
        return encode_state(self._given)

    async def hand_over(self) -> None:
        """Leave the replicas port to the process that now has the sockets."""
        state, given = self.control.collect_state(), self._given
        if given is not None and state != given and self.duty.held:
            now = ", ".join(state.in_words) or "everything is as configured"
            log.warning("changed while the new process started, and unknown to it: %s", now)
        self._is_replaced = given is not None
        if self.peers is not None:
            await self.peers.leave()

    def _warn_of_lost_state(self) -> None:
        """Log what operators have set if the next process will not know it."""
        found = self.control.collect_state().in_words
        if found and self.operator_state is None and self.duty.held and not self._is_replaced:
            log.warning("not kept, as admin.audit_file is not set: %s", ", ".join(found))

    async def close(self) -> None:
        """End all tasks and connections, and write what is left. Call it when requests have ended and features are
        closed.
        """
        self._warn_of_lost_state()
        if self.peers is not None:
            await self.peers.close()
        await self.tasks.close()
        await self.control.audit.flush()
        if self.operator_state is not None and self.duty.held:
            await self.operator_state.flush()
        self.tokenization.close()
        self.upstreams.close()


def build_configured_policies(config: schema.Config) -> dict[str, Policy]:
    """Build every policy, so that a broken policy is found at the start. Raises ConfigError."""
    return build_policies(load_policies(config))


def build_policy_set(config: schema.Config) -> PolicySet:
    """Build the policies, with the active one, the experiment and the admission settings. Raises ConfigError."""
    built = build_configured_policies(config)
    check_arm_rules(config.experiment, config.admission)
    return PolicySet(built, config.active, config.experiment, admission=config.admission)


def build_scheduler(
    config: schema.Config,
    policy_set: PolicySet,
    keyring: Keyring,
    clock: Clock,
    *,
    secret: int = 0,
    peers: PeerExchange | None = None,
    number: int = 0,
    memory: MemoryBudget | None = None,
) -> Scheduler:
    """Build the scheduler with an empty index and fleet. `number` is this worker's number on its host; `memory`: for
    the caches of prompts.
    """
    index = config.index
    indexer = KvIndexer(
        BlockIndex(keyring, index.orphan_blocks),
        SpeculativeBlocks(index.expected_ttl_s),
        ApproximateBlocks(index.approximate_blocks, index.approximate_ttl_s),
        clock,
        index.instance_bytes,
        memory,
    )
    selector = Selector(policy_set, seed=choose_seed(config))
    parts = Fleet(config.fleet), indexer, selector, clock, config.limits.responses_kept
    pooled = config.pool is not None
    if peers is None:
        return Scheduler(*parts, shared_pool=pooled, secret=secret)
    return PeerScheduler(*parts, shared_pool=pooled, secret=secret, broadcast=peers, number=number)


def choose_seed(config: schema.Config) -> int:
    """Return the seed of random choices. Replicas with the same `seed` draw differently, each by its host name and
    port: otherwise all of them would send their next requests to the same one of several equal targets.
    """
    if config.seed is None:
        return secrets.randbits(64)
    if config.replicas is None:
        return config.seed
    own = f"{config.seed} {socket.gethostname()} {config.replicas.port}"
    return int.from_bytes(blake2b(own.encode(), digest_size=8).digest(), "little")


def restore_index(saved: SavedIndex, secret: int, indexer: KvIndexer) -> None:
    """Restore what the index held before the restart, for each target that joins under its former name."""
    if saved.secret != secret:
        log.warning("index.snapshot_file: not restored, its keys were made with another secret")
        return
    for target in saved.targets:
        indexer.restore(target)
    log.info("index.snapshot_file: restored %d targets, to be confirmed by their events", len(saved.targets))


def build_tokenization(
    config: schema.Config, keyring: Keyring, upstreams: Upstreams, clock: Clock, memory: MemoryBudget | None = None
) -> Tokenization:
    locals_ = load_all(config.tokenizers, clock.wall)
    return Tokenization(config.tokens, locals_, keyring, EngineTokenizer(upstreams.fetch), clock, memory)


def build_token_id_passthrough(
    config: schema.Config, tokenization: Tokenization, upstreams: Upstreams, tasks: Tasks
) -> TokenIdPassthrough:
    """Build the pass-through of token ids. It is off if clients may set the field that carries the ids, since a
    client's field must not be overwritten.
    """
    on = config.tokens.token_id_passthrough == "auto" and PARAMS in config.edge.strip_fields
    support = TokenIdSupport(tokenization.renders, upstreams.fetch, tasks)
    return TokenIdPassthrough(support, tokenization, on=on)


def build_discoveries(fleet: schema.FleetConfig, clock: Clock) -> dict[str, Discovery]:
    """Build the sources of instances by name, in the order of their precedence (`backends/discovery/merge.py`)."""
    found: dict[str, Discovery] = {}
    if fleet.kubernetes is not None:
        from router.backends.discovery.kubernetes.discovery import KubernetesDiscovery

        jitter = Jitter(secrets.randbits(32) / 2**32)
        found["kubernetes"] = KubernetesDiscovery(fleet.kubernetes, clock, jitter)
    if fleet.instances:
        found["config"] = StaticDiscovery(fleet.instances)
    if fleet.file is not None:
        found["file"] = FileDiscovery(fleet.file, fleet.file_poll_s, clock)
    if fleet.dns is not None:
        from router.backends.discovery.dns import DnsDiscovery

        found["dns"] = DnsDiscovery(fleet.dns, clock)
    return found


def build_client_keys(config: schema.Config, secret: int) -> ClientKeys | None:
    """Return the client keys and tenants; None if clients need not identify themselves. Raises ConfigError."""
    if not config.clients.identifies:
        return None
    from router.backends.client_keys import ClientKeys

    return ClientKeys(config.clients, derive_salt_key(secret))
