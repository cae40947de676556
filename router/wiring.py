"""Constructors of the router's parts from the configuration. Each part is built once; nothing is started here.

`app.py` decides which parts there are and how they are connected; this module knows what it takes to build one.
"""

from __future__ import annotations

import logging
import secrets
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, NamedTuple

from router.backends.discovery.discovery import Discovery, StaticDiscovery
from router.backends.discovery.file import FileDiscovery
from router.backends.feeds.jitter import Jitter
from router.backends.remote_tokenizer import EngineTokenizer
from router.backends.token_ids.passthrough import TokenIdPassthrough
from router.backends.token_ids.proofs import TokenizerProofs
from router.backends.token_ids.support import TokenIdSupport
from router.backends.vllm.disaggregation import PARAMS
from router.clock import Clock
from router.config import schema
from router.config.reader import load_policies
from router.config.sections.listeners import ListenConfig
from router.control.feature import Core, Feature
from router.control.peers.exchange import HostNetwork, PeerExchange
from router.control.peers.scheduler import PeerScheduler
from router.control.workers.messages import StartWorker
from router.control.workers.supervisor_link import SupervisorLink
from router.errors import needs_extra
from router.fleet.fleet import Fleet
from router.kvcache import snapshots
from router.kvcache.block_keys import Keyring
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
from router.request.ops_api import MetricsAccess, metrics_app
from router.request.relay_path import RelayPath
from router.request.services import Services
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.policy.admission_rules import check_arm_rules
from router.scheduling.policy.policy import Policy, build_policies
from router.scheduling.prefill_peers import PrefillPeers
from router.scheduling.scheduler import Scheduler
from router.scheduling.selector import Selector
from router.tasks import Tasks
from router.telemetry.metrics.exposition import PageForm
from router.telemetry.metrics.shared_scrape import SharedScrape
from router.tenants.directory import TenantDirectory
from router.tenants.isolation import derive_salt_key

if TYPE_CHECKING:
    from router.backends.client_keys import ClientKeys

log = logging.getLogger("warmroute.app")

FEATURES: Sequence[tuple[str, Callable[[schema.Config], object]]] = (
    ("tenants.feature:TenantsFeature", lambda config: config.clients.identifies),
    ("aliases.feature:AliasesFeature", lambda config: config.models),
    ("autoscaling.feature:AutoscalingFeature", lambda config: True),
    ("adapters.feature:AdaptersFeature", lambda config: config.adapters),
    ("admission.feature:AdmissionFeature", lambda config: True),  # an experiment may compare rules
    ("pool.feature:PoolFeature", lambda config: config.pool),
    ("preload.feature:PreloadFeature", lambda config: config.preload.enabled),
    ("continuation.feature:ContinuationFeature", lambda config: config.limits.continuation_bytes),
    ("tracing.feature:TracingFeature", lambda config: config.tracing),
    ("decision_log.feature:DecisionLogFeature", lambda config: config.records.decision_log),
)
"""All features, each with where it is configured; only then it is loaded. Where several have a stage at one place of a
request's path (`request/stages.py`), they run in this order.
"""


def build_features(core: Core) -> dict[str, Feature]:
    """Build the features that are configured, by name. Raises `ConfigError`."""
    used = [where for where, is_configured in FEATURES if is_configured(core.config)]
    return {where.partition(".")[0]: resolve_name(f"router.features.{where}")(core) for where in used}


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
    *,
    secret: int = 0,
    peers: PeerExchange | None = None,
    number: int = 0,
) -> Scheduler:
    """Build the scheduler with an empty index and fleet. `number` is that of this worker among those of its host."""
    index = config.index
    indexer = KvIndexer(
        BlockIndex(keyring, index.orphan_blocks),
        SpeculativeBlocks(index.expected_ttl_s),
        ApproximateBlocks(index.approximate_blocks, index.approximate_ttl_s),
        clock,
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


def restore_index(saved: SavedIndex, secret: int, indexer: KvIndexer) -> None:
    """Give each target that joins under its former name what the index knew of it before the restart."""
    if saved.secret != secret:
        log.warning("index.snapshot_file: not restored, its keys were made with another secret")
        return
    for target in saved.targets:
        indexer.restore(target)
    log.info("index.snapshot_file: restored %d targets, to be confirmed by their events", len(saved.targets))
