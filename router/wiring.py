"""The rooms from the configuration: each is built here, once, and nothing is started.

`app.py` says which rooms there are and how they are tied together; what it takes to make one is said here.
"""

from __future__ import annotations

import logging
import os
import secrets
from hashlib import blake2b
from pathlib import Path
from urllib.parse import urlsplit

from router.backends.discovery.base import Discovery
from router.backends.discovery.file import FileDiscovery
from router.backends.discovery.static import StaticDiscovery
from router.backends.mooncake.client import MooncakeStore
from router.backends.no_kv_store import NoKvStore
from router.backends.remote_tokenizer import EngineTokenizer
from router.backends.token_ids.passthrough import TokenIdPassthrough
from router.backends.token_ids.support import TokenIdSupport
from router.backends.vllm.disaggregation import PARAMS
from router.clock import Clock
from router.config import schema
from router.config.reader import load_policies
from router.control.workers.role import WorkerRole
from router.control.workers.scheduler import SyncedScheduler
from router.fleet.fleet import Fleet
from router.kvcache import snapshots
from router.kvcache.block_keys import Keyring
from router.kvcache.index import BlockIndex
from router.kvcache.indexer import KvIndexer, StoredBlockObserver
from router.kvcache.memory_budget import MemoryBudget
from router.kvcache.snapshot_format import SavedIndex
from router.kvcache.speculative import ApproximateBlocks, SpeculativeBlocks
from router.prompt.api.parse import ReadOptions
from router.prompt.tokenization import local_tokenizer
from router.prompt.tokenization.tokenization import Tokenization
from router.proxy.upstreams import Upstreams
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.policy.policy import Policy, build_policies
from router.scheduling.scheduler import Scheduler
from router.scheduling.selector import Selector
from router.tasks import Tasks
from router.telemetry.decision_log.writer import DecisionLogWriter

log = logging.getLogger("warmroute.app")


def build_configured_policies(config: schema.Config) -> dict[str, Policy]:
    """Every policy, built, so that a broken one is known at the start. Raises `ConfigError`."""
    return build_policies(load_policies(config))


def build_scheduler(
    config: schema.Config,
    regime: PolicySet,
    keyring: Keyring,
    clock: Clock,
    witness: StoredBlockObserver | None = None,
    *,
    secret: int = 0,
    seat: WorkerRole | None = None,
) -> Scheduler:
    index = config.index
    knowledge = KvIndexer(
        BlockIndex(keyring, index.orphan_blocks),
        SpeculativeBlocks(index.expected_ttl_s),
        ApproximateBlocks(index.approximate_blocks, index.approximate_ttl_s),
        clock,
        witness,
    )
    desk = Selector(regime, seed=config.seed if config.seed is not None else secrets.randbits(64))
    fleet, pooled, kept = Fleet(config.fleet), config.pool is not None, config.limits.responses_kept
    if seat is None:
        return Scheduler(fleet, knowledge, desk, clock, kept, shared_pool=pooled, secret=secret)
    return SyncedScheduler(
        fleet, knowledge, desk, clock, kept, shared_pool=pooled, secret=secret, worker=seat.number, telling=seat.others
    )


def build_read_options(config: schema.Config) -> tuple[ReadOptions, ReadOptions]:
    """How prompts are read for policies that look at caches, and for those that do not."""
    strip, inject = frozenset(config.edge.strip_fields), config.usage == "inject"
    return ReadOptions(strip, inject, want_source=True), ReadOptions(strip, inject, want_source=False)


def build_decision_log(config: schema.Config, secret: int, run_id: str, clock: Clock) -> DecisionLogWriter | None:
    decision_log = config.records.decision_log
    return None if decision_log is None else DecisionLogWriter(decision_log, secret, run_id, clock)


def build_kv_store(
    config: schema.Config, upstreams: Upstreams, clock: Clock, memory: MemoryBudget
) -> MooncakeStore | NoKvStore:
    if config.pool is None:
        return NoKvStore()
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
    config: schema.Config, tokens: Tokenization, upstreams: Upstreams, tasks: Tasks
) -> TokenIdPassthrough:
    """Off where clients may set the field in which ids travel: what they put there is not ours to change."""
    on = config.tokens.token_id_passthrough == "auto" and PARAMS in config.edge.strip_fields
    return TokenIdPassthrough(
        TokenIdSupport(tokens.local_tokenizer, upstreams.fetch, tasks),
        lambda model: not tokens.uses_remote(model),
        on=on,
    )


def build_discoveries(fleet: schema.FleetConfig) -> dict[str, Discovery]:
    found: dict[str, Discovery] = {}
    if fleet.instances:
        found["config"] = StaticDiscovery(fleet.instances)
    if fleet.file is not None:
        found["file"] = FileDiscovery(fleet.file, fleet.file_poll_s)
    return found


def build_snapshots(config: schema.Config, secret: int, core: Scheduler, tasks: Tasks) -> snapshots.Snapshots | None:
    index = config.index
    if index.snapshot_file is None:
        return None
    return snapshots.Snapshots(Path(index.snapshot_file), index.snapshot_every_s, secret, core.indexer, tasks)


def restore_index(saved: SavedIndex, secret: int, knowledge: KvIndexer) -> None:
    """What the index knew before a restart, for whoever joins under the same name."""
    if saved.secret != secret:
        log.warning("no snapshot of the index: its keys were made with another secret")
        return
    for target in saved.targets:
        knowledge.restore(target)
    log.info("the index is back from its snapshot, unconfirmed: %d targets", len(saved.targets))


def resolve_key_secret(config: schema.Config, saved: SavedIndex | None = None) -> int:
    """What block keys are seeded with: 64 bits that clients cannot know. Those of a snapshot, unless some are given."""
    name = config.index.key_secret_env
    if name is None and saved is not None:
        return saved.secret
    secret = secrets.token_bytes() if name is None else os.fsencode(os.environ[name])
    return int.from_bytes(blake2b(secret, digest_size=8).digest(), "little")
