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
from router.backends.mooncake.client import MooncakePool
from router.backends.no_kv_store import NoPool
from router.backends.remote_tokenizer import Remote
from router.backends.token_ids.passthrough import Handing
from router.backends.token_ids.support import Takers
from router.backends.vllm.disaggregation import PARAMS
from router.clock import Clock
from router.config import schema
from router.config.reader import load_policies
from router.control.workers.role import Seat
from router.control.workers.scheduler import SharedCore
from router.fleet.fleet import Fleet
from router.kvcache import snapshots
from router.kvcache.block_keys import Keyring
from router.kvcache.index import Index
from router.kvcache.indexer import Knowledge, Witness
from router.kvcache.memory_budget import Budget
from router.kvcache.snapshot_format import SavedIndex
from router.kvcache.speculative import Approximate, Expected
from router.prompt.api.parse import ReadOptions
from router.prompt.tokenization import local_tokenizer
from router.prompt.tokenization.tokenization import Tokens
from router.proxy.upstreams import Upstreams
from router.scheduling.experiments.policy_set import Regime
from router.scheduling.policy.policy import Policy, build_policies
from router.scheduling.scheduler import Core
from router.scheduling.selector import Desk
from router.tasks import Tasks
from router.telemetry.decision_log.writer import JsonLines

log = logging.getLogger("warmroute.app")


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
    seat: Seat | None = None,
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
    fleet, pooled, kept = Fleet(config.fleet), config.pool is not None, config.limits.responses_kept
    if seat is None:
        return Core(fleet, knowledge, desk, clock, kept, shared_pool=pooled, secret=secret)
    return SharedCore(
        fleet, knowledge, desk, clock, kept, shared_pool=pooled, secret=secret, worker=seat.number, telling=seat.others
    )


def readings(config: schema.Config) -> tuple[ReadOptions, ReadOptions]:
    """How prompts are read for policies that look at caches, and for those that do not."""
    strip, inject = frozenset(config.edge.strip_fields), config.usage == "inject"
    return ReadOptions(strip, inject, want_source=True), ReadOptions(strip, inject, want_source=False)


def build_ledger(config: schema.Config, secret: int, run_id: str, clock: Clock) -> JsonLines | None:
    ledger = config.records.ledger
    return None if ledger is None else JsonLines(ledger, secret, run_id, clock)


def build_pool(config: schema.Config, upstreams: Upstreams, clock: Clock, memory: Budget) -> MooncakePool | NoPool:
    if config.pool is None:
        return NoPool()
    masters = [f"mooncake master {urlsplit(url).netloc}" for url in config.pool.masters]
    for name, url in zip(masters, config.pool.masters, strict=True):
        upstreams.add(name, url)
    return MooncakePool(config.pool, masters, upstreams.fetch, Tasks("pool"), clock, memory)


def build_tokens(
    config: schema.Config, keyring: Keyring, upstreams: Upstreams, clock: Clock, memory: Budget | None = None
) -> Tokens:
    locals_ = {
        model: local_tokenizer.load(source, f"tokenizers.{model}", clock.wall)
        for model, source in config.tokenizers.items()
        if source.path is not None
    }
    return Tokens(config.tokens, locals_, keyring, Remote(upstreams.fetch), clock, memory)


def build_handing(config: schema.Config, tokens: Tokens, upstreams: Upstreams, tasks: Tasks) -> Handing:
    """Off where clients may set the field in which ids travel: what they put there is not ours to change."""
    on = config.tokens.hand_ids == "auto" and PARAMS in config.edge.strip_fields
    return Handing(Takers(tokens.local, upstreams.fetch, tasks), lambda model: not tokens.asks(model), on=on)


def discoveries(fleet: schema.Fleet) -> dict[str, Discovery]:
    found: dict[str, Discovery] = {}
    if fleet.instances:
        found["config"] = StaticDiscovery(fleet.instances)
    if fleet.file is not None:
        found["file"] = FileDiscovery(fleet.file, fleet.file_poll_s)
    return found


def build_snapshots(config: schema.Config, secret: int, core: Core, tasks: Tasks) -> snapshots.Snapshots | None:
    index = config.index
    if index.snapshot_file is None:
        return None
    return snapshots.Snapshots(Path(index.snapshot_file), index.snapshot_every_s, secret, core.knowledge, tasks)


def bring_back(saved: SavedIndex, secret: int, knowledge: Knowledge) -> None:
    """What the index knew before a restart, for whoever joins under the same name."""
    if saved.secret != secret:
        log.warning("no snapshot of the index: its keys were made with another secret")
        return
    for target in saved.targets:
        knowledge.restore(target)
    log.info("the index is back from its snapshot, unconfirmed: %d targets", len(saved.targets))


def secret_of(config: schema.Config, saved: SavedIndex | None = None) -> int:
    """What block keys are seeded with: 64 bits that clients cannot know. Those of a snapshot, unless some are given."""
    name = config.index.key_secret_env
    if name is None and saved is not None:
        return saved.secret
    secret = secrets.token_bytes() if name is None else os.fsencode(os.environ[name])
    return int.from_bytes(blake2b(secret, digest_size=8).digest(), "little")
