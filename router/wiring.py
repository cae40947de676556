"""Constructors of the router's parts from the configuration. Each part is built once; nothing is started here.

`app.py` decides which parts there are and how they are connected; this module knows what it takes to build one.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from router.backends.discovery.discovery import Discovery, StaticDiscovery
from router.backends.discovery.file import FileDiscovery
from router.backends.feeds.jitter import Jitter
from router.backends.fetch import Fetch
from router.backends.kv_store import KvStore
from router.backends.remote_tokenizer import EngineTokenizer
from router.backends.token_ids.passthrough import TokenIdPassthrough
from router.backends.token_ids.proofs import TokenizerProofs
from router.backends.token_ids.support import TokenIdSupport
from router.backends.vllm.disaggregation import PARAMS
from router.clock import Clock
from router.config import schema
from router.config.reader import load_policies
from router.config.sections.base import split_base_url
from router.config.sections.listeners import ListenConfig
from router.control.duty import Duty
from router.control.metering import Metering
from router.control.peers.exchange import HostNetwork, PeerExchange
from router.control.peers.scheduler import PeerScheduler
from router.control.workers.messages import StartWorker
from router.control.workers.supervisor_link import SupervisorLink
from router.errors import needs_extra
from router.fleet.fleet import Fleet
from router.kvcache import snapshots
from router.kvcache.block_keys import Keyring
from router.kvcache.events import StoredBlockObserver
from router.kvcache.index import BlockIndex
from router.kvcache.indexer import KvIndexer
from router.kvcache.memory_budget import MemoryBudget
from router.kvcache.snapshot_format import SavedIndex
from router.kvcache.speculative import ApproximateBlocks, SpeculativeBlocks
from router.picker.answer_log import AnswerLog
from router.picker.rpc_listener import RpcListener
from router.prompt.api.parse import ReadOptions
from router.prompt.tokenization import local_tokenizer
from router.prompt.tokenization.tokenization import Tokenization
from router.proxy.asgi import AsgiHandler
from router.proxy.client_address import TrustedProxies
from router.proxy.headers import HeaderRules
from router.proxy.listener import HttpListener, configure_server
from router.proxy.listening_sockets import ListeningSockets
from router.proxy.upstreams import Upstreams, UpstreamTimeouts
from router.request.admission.rules import check_arm_rules
from router.request.ops_api import MetricsAccess, metrics_app
from router.request.relay_path import RelayPath
from router.request.services import Services
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.policy.policy import Policy, build_policies
from router.scheduling.prefill_peers import PrefillPeers
from router.scheduling.scheduler import Scheduler
from router.scheduling.selector import Selector
from router.tasks import Tasks
from router.telemetry.metrics.exposition import PageForm
from router.telemetry.metrics.shared_scrape import SharedScrape
from router.telemetry.recent_records import RecentRecords
from router.tenants.directory import TenantDirectory
from router.tenants.isolation import derive_salt_key

if TYPE_CHECKING:
    from router.backends.client_keys import ClientKeys
    from router.features.adapters.loading import AdapterLoader
    from router.features.aliases.stage import ModelNames
    from router.features.autoscaling.scaling import Scaling
    from router.features.decision_log.writer import DecisionLogWriter
    from router.features.pool.client import MooncakeStore
    from router.features.preload.preloading import Preloading
    from router.features.tenants.stages import TenantStages
    from router.features.tracing.spans import Address
    from router.features.tracing.tracing import Tracing

log = logging.getLogger("warmroute.app")


class WorkerRole(NamedTuple):
    """One worker among several: how its supervisor has started it, and the way to that."""

    start: StartWorker
    link: SupervisorLink

    def network(self, workers: int) -> HostNetwork:
        """Return the network of all workers of this host."""
        return HostNetwork(self.start.name, self.start.peer_secret, self.start.number, workers)


def build_configured_policies(config: schema.Config) -> dict[str, Policy]:
    """Build every policy, so that a broken one is found at the start. Raises ConfigError."""
    return build_policies(load_policies(config))


def build_policy_set(config: schema.Config) -> PolicySet:
    """Build the policies with what decides among them. Raises ConfigError."""
    built = build_configured_policies(config)
    check_arm_rules(config.experiment, config.admission)
    return PolicySet(built, config.active, config.experiment, admission=config.admission)


def build_scheduler(
    config: schema.Config,
    policy_set: PolicySet,
    keyring: Keyring,
    clock: Clock,
    observer: StoredBlockObserver | None = None,
    *,
    secret: int = 0,
    peers: PeerExchange | None = None,
    number: int = 0,
) -> Scheduler:
    """Build the scheduler with an empty index and fleet. `observer` gets every stored block that an event reports;
    `number` is that of this worker among those of its host.
    """
    index = config.index
    indexer = KvIndexer(
        BlockIndex(keyring, index.orphan_blocks),
        SpeculativeBlocks(index.expected_ttl_s),
        ApproximateBlocks(index.approximate_blocks, index.approximate_ttl_s),
        clock,
        observer,
        index.instance_bytes,
    )
    selector = Selector(policy_set, seed=choose_seed(config))
    parts = Fleet(config.fleet), indexer, selector, clock, config.limits.responses_kept
    pooled = config.pool is not None
    if peers is None:
        return Scheduler(*parts, shared_pool=pooled, secret=secret)
    return PeerScheduler(*parts, shared_pool=pooled, secret=secret, broadcast=peers, number=number)


def choose_seed(config: schema.Config) -> int:
    """Return the seed of random choices. Replicas with the same `seed` draw differently, each by its host name and
    port: else all of them would send their next requests to the same of several equal targets.
    """
    if config.seed is None:
        return secrets.randbits(64)
    if config.replicas is None:
        return config.seed
    own = f"{config.seed} {socket.gethostname()} {config.replicas.port}"
    return int.from_bytes(blake2b(own.encode(), digest_size=8).digest(), "little")


def build_read_options(config: schema.Config, *, want_source: bool = False) -> ReadOptions:
    """Return how to read bodies; requests read the prompt in them only when its token ids are needed."""
    return ReadOptions(frozenset(config.edge.strip_fields), config.usage == "inject", want_source=want_source)


def build_proxy_read_options(config: schema.Config) -> ReadOptions:
    """Return how the proxy reads bodies: it relays the answers, so it may also ask for what it then takes out."""
    continues = config.limits.continuation_bytes > 0 and PARAMS in config.edge.strip_fields
    usage = config.usage == "inject"
    return ReadOptions(frozenset(config.edge.strip_fields), usage, want_source=False, continues=continues)


def build_decision_log(config: schema.Config, secret: int, run_id: str, clock: Clock) -> DecisionLogWriter | None:
    decision_log = config.records.decision_log
    if decision_log is None:
        return None
    from router.features.decision_log.writer import DecisionLogWriter

    return DecisionLogWriter(decision_log, secret, run_id, clock)


def build_metrics_access(
    config: schema.Config, render: Callable[[PageForm], Awaitable[bytes]], tasks: Tasks, clock: Clock
) -> MetricsAccess:
    has_exemplars = config.tracing is not None
    return MetricsAccess(SharedScrape(render, tasks, clock), config.metrics.token_hash, has_exemplars)


def build_metrics_listener(
    config: schema.Config, metrics: MetricsAccess, sockets: ListeningSockets
) -> HttpListener | None:
    """Build the listener of the metrics; None where they are on the public one."""
    if config.metrics.port is None:
        return None
    address = ListenConfig(host=config.metrics.host, port=config.metrics.port)
    return HttpListener(configure_server(AsgiHandler(metrics_app(metrics)), address), sockets=sockets)


def build_adapters(
    config: schema.Config, fleet: Fleet, fetch: Fetch, tasks: Tasks, clock: Clock
) -> AdapterLoader | None:
    """Build what loads adapters; None where none are configured."""
    if not config.adapters:
        return None
    from router.features.adapters.loading import AdapterLoader

    return AdapterLoader(config, fleet, fetch, tasks, clock)


def build_model_names(config: schema.Config, scheduler: Scheduler, clock: Clock, run_id: str) -> ModelNames | None:
    """Build what resolves aliases; None where there are none."""
    if not config.models:
        return None
    from router.features.aliases.aliases import ModelAliases
    from router.features.aliases.stage import ModelNames

    bases = {name: adapter.base for name, adapter in config.adapters.items()}
    return ModelNames(ModelAliases(config.models, scheduler.fleet, bases), scheduler, clock, run_id)


def build_tenant_stages(metering: Metering) -> TenantStages | None:
    """Build the stages of tenants; None where clients need not say who they are."""
    if not metering.active:
        return None
    from router.features.tenants.stages import TenantStages

    return TenantStages(metering.meter)


def build_tracing(config: schema.Config, fleet: Fleet, run_id: str, clock: Clock) -> Tracing | None:
    """Build tracing, if configured. Raises `ConfigError` where its packages are missing or a setting has no meaning."""
    if config.tracing is None:
        return None
    from router.features.tracing.build import build_tracing as build

    def address(target: str) -> Address | None:
        instance = fleet.get(target.rpartition("/")[0])  # called in a thread, where nothing may be built
        return None if instance is None else split_base_url(instance.config.url)

    continues = "traceparent" not in {name.lower() for name in config.edge.strip_headers}
    return build(config.tracing, os.environ, address, clock, instance=run_id, continues=continues)


def build_pool(config: schema.Config, upstreams: Upstreams, clock: Clock, memory: MemoryBudget) -> MooncakeStore | None:
    """Build the client of the shared pool, if configured."""
    if config.pool is None:
        return None
    from router.features.pool.client import MooncakeStore

    masters = [f"mooncake master {urlsplit(url).netloc}" for url in config.pool.masters]
    for name, url in zip(masters, config.pool.masters, strict=True):
        upstreams.add(name, url)
    return MooncakeStore(config.pool, masters, upstreams.fetch, Tasks("pool"), clock, memory)


def build_tokenization(
    config: schema.Config, keyring: Keyring, upstreams: Upstreams, clock: Clock, memory: MemoryBudget | None = None
) -> Tokenization:
    locals_ = {
        model: local_tokenizer.load(source, f"tokenizers.{model}", clock.wall)
        for model, source in config.tokenizers.items()
        if source.path is not None
    }
    return Tokenization(config.tokens, locals_, keyring, EngineTokenizer(upstreams.fetch), clock, memory)


def build_token_id_passthrough(
    config: schema.Config, tokenization: Tokenization, upstreams: Upstreams, tasks: Tasks
) -> TokenIdPassthrough:
    """Build the pass-through. It is off when clients may set the field of the ids, which must not be overwritten."""
    on = config.tokens.token_id_passthrough == "auto" and PARAMS in config.edge.strip_fields
    support = TokenIdSupport(tokenization.renders, upstreams.fetch, tasks)
    return TokenIdPassthrough(support, tokenization, on=on)


def build_tokenizer_proofs(tokenization: Tokenization, tasks: Tasks, clock: Clock) -> TokenizerProofs:
    proofs = TokenizerProofs(tokenization, tasks, clock)
    tokenization.on_miscount = proofs.on_miscount
    return proofs


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


def build_picker(
    services: Services,
    tenants: TenantDirectory | None,
    passthrough: TokenIdPassthrough,
    upstreams: Upstreams,
    unready_reason: Callable[[], str | None],
    stopping: Callable[[], bool],
    sockets: ListeningSockets,
    answer_log: AnswerLog,
    processes: int = 1,
    number: int = 0,
) -> RpcListener | None:
    """Build the endpoint picker of `picker`, over the services of the proxy but for the data path; this process is the
    one with this `number` of the `processes` that serve it. Raises `ConfigError` for certificate files that cannot be
    used.
    """
    config, clock = services.config, services.clock
    if config.picker is None:
        return None
    with needs_extra("picker", "picker"):
        from router.picker.health import PickerHealth
        from router.picker.server import PickerServer, read_bounds
        from router.request.picker_api import PickerApi
        from router.request.picker_path import PickerPath

    path = PickerPath(
        services.scheduler.fleet,
        passthrough,
        build_header_rules(config),
        answer_log,
        upstreams.credentials,
        services.metrics.on_moved,
        config.picker.fallbacks,
    )
    services = replace(services, data_path=path, read_options=build_read_options(config))
    api = PickerApi(services, tenants, testing=config.picker.testing)
    bounds = read_bounds(config.limits, config.listen)
    health = PickerHealth(unready_reason, stopping)
    proxies = TrustedProxies(config.listen.trusted_proxies)
    return PickerServer(config.picker, bounds, proxies, api, answer_log, health, clock, sockets, processes, number)


def build_keda(config: schema.Config, scaling: Scaling, clock: Clock, sockets: ListeningSockets) -> RpcListener | None:
    """Build the listener for KEDA; None without `keda`. Raises `ConfigError` for certificate files that cannot be
    used.
    """
    keda = config.keda
    if keda is None:
        return None
    with needs_extra("picker", "keda"):
        from router.features.autoscaling.keda.external_scaler import ExternalScaler
        from router.picker.credentials import server_context
        from router.picker.grpc_listener import GrpcListener

    tls = server_context(keda.tls, clock.wall())
    services = ExternalScaler(scaling).services()
    return GrpcListener("keda.port", keda.host, keda.port, services, sockets, clock, tls=tls)


def build_header_rules(config: schema.Config) -> HeaderRules:
    """Return what of a client's headers reaches engines: not its key for this router, nor who a proxy says it is."""
    clients, strip = config.clients, config.edge.strip_headers
    named = [] if clients.tenant_header is None else [clients.tenant_header]
    return HeaderRules([*strip, *named], own_keys=clients.keys_file is not None or clients.jwt is not None)


def build_relay_path(
    config: schema.Config, upstreams: Upstreams, passthrough: TokenIdPassthrough, peers: PrefillPeers
) -> RelayPath:
    """Return the data path of a proxy."""
    limits = config.limits
    timeouts = UpstreamTimeouts(limits.first_byte_timeout_s, limits.idle_timeout_s)
    rules = build_header_rules(config)
    return RelayPath(upstreams, passthrough, rules, timeouts, peers, continuation_bytes=limits.continuation_bytes)


def build_client_keys(config: schema.Config, secret: int) -> ClientKeys | None:
    """Return the keys, with the tenants; None where nobody has to say who it is. Raises ConfigError."""
    if not config.clients.identifies:
        return None
    from router.backends.client_keys import ClientKeys

    return ClientKeys(config.clients, derive_salt_key(secret))


def build_snapshots(
    config: schema.Config, secret: int, scheduler: Scheduler, tasks: Tasks
) -> snapshots.Snapshots | None:
    """Build what writes the index snapshot; None: there is none."""
    index = config.index
    if index.snapshot_file is None:
        return None
    return snapshots.Snapshots(Path(index.snapshot_file), index.snapshot_every_s, secret, scheduler.indexer, tasks)


def build_preloading(
    config: schema.Config,
    scheduler: Scheduler,
    keyring: Keyring,
    kv_store: KvStore,
    records: RecentRecords,
    fetch: Fetch,
    leads: Callable[[], bool],
    tasks: Tasks,
    clock: Clock,
) -> Preloading | None:
    """Build what loads prefixes ahead; None where nothing is. `leads`: no other process does it."""
    if not config.preload.enabled:
        return None
    from router.features.preload.budget import PreloadBudget
    from router.features.preload.copies import HotCopies
    from router.features.preload.handoff import HandOff
    from router.features.preload.preloader import Preloader
    from router.features.preload.preloading import Preloading
    from router.features.preload.warmup import WarmUp

    scheduler.view_builder.names_sessions = True  # they are counted by prefix
    budget = PreloadBudget(config.preload.share)
    preloader = Preloader(budget, scheduler, keyring, kv_store, fetch, clock)
    on = config.preload
    return Preloading(
        preloader,
        WarmUp(on, preloader, scheduler, records, leads, tasks, clock) if on.join else None,
        HandOff(on.drain_s, preloader, scheduler, records, tasks, clock) if on.drain else None,
        HotCopies(preloader, scheduler, records, leads, tasks, clock) if on.copies else None,
    )


def loads_ahead(duty: Duty, peers: PeerExchange | None) -> bool:
    """Return whether this process does what one of all processes in front of the fleet does."""
    return duty.held and (peers is None or peers.is_first_host())


def restore_index(saved: SavedIndex, secret: int, indexer: KvIndexer) -> None:
    """Give each target that joins under its former name what the index knew of it before the restart."""
    if saved.secret != secret:
        log.warning("index.snapshot_file: not restored, its keys were made with another secret")
        return
    for target in saved.targets:
        indexer.restore(target)
    log.info("index.snapshot_file: restored %d targets, to be confirmed by their events", len(saved.targets))
