"""The status of the router, read from all its parts, as JSON for the admin API and as a snapshot for the metrics.

It only reads, except on an operator's request to drain an instance or to forget a cache.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from router.backends.discovery.discovery import Discovery
from router.backends.feeds.health import HealthProbe
from router.backends.token_ids.passthrough import TokenIdPassthrough
from router.clock import Clock
from router.config import schema
from router.config.reader import dump_yaml
from router.control.cache_tree import describe_cache, find_block_tokens
from router.control.control import Control
from router.control.fault_watch import FaultWatch
from router.control.feature import Feature
from router.control.peers.exchange import PeerExchange
from router.control.peers.host_records import HostRecords
from router.control.record_detail import Others, describe_in_full
from router.fleet.engine_facts import EventEndpoint
from router.fleet.instance import Instance, Target
from router.fleet.worker_share import NO_SHARE
from router.kvcache.event_stream import EventStream
from router.kvcache.events import Tier
from router.kvcache.index import IndexStats
from router.prompt.tokenization.tokenization import Tokenization, TokenizationReport
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.policy.record_view import to_plain
from router.scheduling.scheduler import Scheduler
from router.telemetry.metrics.snapshot import (
    ArmUnits,
    PolicyInForce,
    PolicyState,
    PrefixCacheState,
    ReplicaReport,
    RouterSnapshot,
    TargetState,
)
from router.telemetry.recent_records import RecentRecords
from router.telemetry.record_query import RecordQuery
from router.telemetry.request_flow import TargetRequest, list_target_requests
from router.telemetry.shared_prefixes import count_prefixes
from router.tenants.isolation import read_joined

NO_BLOCKS = IndexStats((0, 0, 0), 0, 0, True)
NOT_LOADING = {"warming": False, "handing_off": False}


@dataclass(frozen=True)
class Status:
    scheduler: Scheduler
    tokenization: Tokenization
    passthrough: TokenIdPassthrough
    health: HealthProbe
    discoveries: Mapping[str, Discovery]
    describe_sources: Callable[[str], list[dict[str, Any]]]  # which discovery sources list an instance
    recent_records: RecentRecords
    control: Control
    faults: FaultWatch
    clock: Clock
    run_id: str
    config: schema.Config  # as this process was started with
    started_wall_s: float
    features: Mapping[str, Feature]  # the configured ones, by name
    peers: PeerExchange | None = None  # None: this process is the only one
    host_records: HostRecords | None = None  # of other workers
    host_workers: Callable[[], list[dict[str, Any]]] | None = None  # describes all workers; None: only this one

    # for the admin API, as plain JSON types

    def describe_instances(self) -> list[dict[str, Any]]:
        """Return state, sources, load, index size, stream health and tokenizer of each instance, with at least the
        fields `id`, `url` and `state`.
        """
        return [self._describe_instance(instance) for instance in self.scheduler.fleet]

    def describe_instance(self, id: str) -> dict[str, Any] | None:
        """Describe one instance as `describe_instances` does; None if there is no such instance."""
        instance = self.scheduler.fleet.get(id)
        return None if instance is None else self._describe_instance(instance)

    def _describe_instance(self, instance: Instance) -> dict[str, Any]:
        support, tokenizers = self.passthrough.report().instances, self.tokenization.report()
        return {
            "id": instance.id,
            "url": instance.config.url,
            "state": instance.state.value,
            "accepting": instance.accepting,
            "joins": instance.joins,
            **self._describe_for_features(instance.id),
            "sources": self.describe_sources(instance.id),
            "revision": instance.config.revision,
            "panic": self.scheduler.fleet.in_panic(instance),
            "trouble": self.health.trouble(instance.id),
            "silent_faults": self.faults.describe(instance.id),
            "distrusted": None if instance.limits.distrust is None else instance.limits.distrust.detail,
            "over_limit": dict(instance.limits.counts),
            "models": [card.id for card in instance.cards],
            "tokenizer": self._describe_tokenizer(tokenizers.get(instance.base or "")),
            "token_ids": support[instance.id]._asdict() if instance.id in support else None,
            "targets": [self._describe_target(target) for target in instance.targets.values()],
        }

    def _describe_for_features(self, instance: str) -> dict[str, Any]:
        found: dict[str, Any] = dict(NOT_LOADING)
        for feature in self.features.values():
            found |= feature.describe_instance(instance)
        return found

    def _describe_tokenizer(self, report: TokenizationReport | None) -> dict[str, Any] | None:
        """Describe a model's tokenizer, with the memory of all models; None when the router has no tokenizer for
        it.
        """
        if report is None:
            return None
        memory = self.tokenization.memory
        return {**report._asdict(), "memory_bytes": memory.held_bytes, "memory_limit_bytes": memory.limit_bytes}

    def describe_discovery(self) -> dict[str, str | None]:
        """Return, by discovery source, why its list may be out of date; None when it is current."""
        return {name: discovery.trouble for name, discovery in self.discoveries.items()}

    def describe_silent_faults(self) -> list[dict[str, Any]]:
        """Return the faults that fail no request and belong to no single instance."""
        return self.faults.describe_fleet()

    def dump_config(self) -> str:
        """Return the configuration in force as YAML with every default: that of the start, with the policies,
        experiment and admission that are in force now. Hashes of tokens are left out.
        """
        admin, now = self.config.admin, self.control.policy_set
        tokens = [token.model_copy(update={"hash": "not shown"}) for token in admin.tokens]
        in_force = {"active": now.active, "experiment": now.experiment, "admission": now.admission}
        config = self.config.model_copy(update=in_force | {"admin": admin.model_copy(update={"tokens": tokens})})
        return dump_yaml(config, {name: one.spec for name, one in now.policies.items() if one.spec is not None})

    def discovery_ages(self) -> dict[str, float | None]:
        """Return, by discovery source, the seconds since its last answer; None before the first answer, and for a
        source that is not queried.
        """
        now = self.clock.now()
        return {
            name: None if discovery.confirmed_at is None else now - discovery.confirmed_at
            for name, discovery in self.discoveries.items()
        }

    def drain(self, instance: str, on: bool) -> bool:
        """Start or stop draining an instance. A feature may do something first: with `preload.drain` the instance
        is handed off. Return False if there is no such instance.
        """
        if any(feature.on_drain(instance, on) for feature in self.features.values()):
            return True
        return self.scheduler.drain(instance, on)

    def forget_cache(self, instance: str) -> bool:
        """Forget what an instance's caches hold. Return False when there is no such instance."""
        return self.scheduler.forget_cache(instance)

    async def find_record(self, record_id: str, others: Others = "configured") -> dict[str, Any] | None:
        """Return the record of a request, with what other policies would have chosen; None when it is unknown or no
        longer kept.
        """
        record = self.recent_records.get(record_id)
        if record is not None:
            return await describe_in_full(record, self.scheduler.selector.policy_set.policies, others)
        return None if self.host_records is None else await self.host_records.find(record_id, others)

    async def find_records(self, query: RecordQuery) -> list[bytes]:
        """Return the matching records of all workers as JSON, in the order of the query. A session may also be given
        by its client's name for it, with ` / ` between joined names.
        """
        names = {name for session in query.sessions for name in (session, read_joined(session))}
        named = tuple(map(self.scheduler.view_builder.session_pseudonym, names))
        query = msgspec.structs.replace(query, sessions=query.sessions + named)
        own = await self.recent_records.encode(query)
        if self.host_records is None:
            return own
        return await asyncio.to_thread(query.sort_encoded, own + await self.host_records.select(query))

    async def list_target_requests(self, target: str, limit: int) -> list[TargetRequest]:
        """Return the newest requests whose last attempt was at `target`, newest first."""
        found = await list_target_requests(self.recent_records, target, limit)
        if self.host_records is not None:
            found += await self.host_records.list_target_requests(target, limit)
        return sorted(found, key=lambda request: request.at_s, reverse=True)[:limit]

    async def describe_cache(self, limit: int) -> dict[str, Any]:
        """Return the prefixes that most prompts of the last minutes share, the targets that hold them, and the
        tokens held twice.
        """
        block_tokens = find_block_tokens(self.scheduler)
        parts = [await count_prefixes(self.recent_records, self.clock.wall(), block_tokens)]
        if self.host_records is not None:
            parts += await self.host_records.count_prefixes(block_tokens)
        return await describe_cache(self.scheduler, parts, block_tokens, limit)

    def describe_workers(self) -> list[dict[str, Any]]:
        """Describe the processes that answer requests, and the policies in force in each."""
        if self.host_workers is not None:
            return self.host_workers()
        own = {"number": 0, "pid": os.getpid(), "run": self.run_id, "up": True, "on_duty": True}
        return [own | {"policies": self.scheduler.selector.policy_set.digests, "trouble": None}]

    def describe_replicas(self) -> list[ReplicaReport]:
        """Describe the other routers that share load with this one; empty without `replicas`."""
        return [] if self.peers is None else self.peers.describe()

    def describe_feature(self, name: str) -> dict[str, Any] | None:
        """Return the description of the feature of this name; None if the feature is not configured."""
        feature = self.features.get(name)
        return None if feature is None else feature.describe()

    # metrics

    def snapshot(self) -> RouterSnapshot:
        """Return the values of all state metrics as of now."""
        memory = self.tokenization.memory
        return RouterSnapshot(
            targets=[self._snapshot_target(i, target) for i in self.scheduler.fleet for target in i.targets.values()],
            distrusted={i.id: i.limits.distrust is not None for i in self.scheduler.fleet},
            over_limit={(i.id, limit): n for i in self.scheduler.fleet for limit, n in i.limits.counts.items()},
            tokenizers=self.tokenization.report(),
            policy_faults=self.scheduler.selector.faults,
            discovery_trouble={name: trouble is not None for name, trouble in self.describe_discovery().items()},
            discovery_age_s=self.discovery_ages(),
            unpaired=self.scheduler.peers.unpaired,
            policies=self._snapshot_policies(),
            passthrough=self.passthrough.report(),
            prefix_cache=PrefixCacheState(memory.held_bytes, memory.limit_bytes, memory.evicted),
            replicas=self.describe_replicas(),
            features=[family for feature in self.features.values() for family in feature.families()],
        )

    def _snapshot_policies(self) -> PolicyState:
        selector, experiment = self.scheduler.selector, self.scheduler.experiment
        policy_set = selector.policy_set
        units = {} if experiment is None else experiment.units
        return PolicyState(
            in_force=list_policies_in_force(policy_set),
            switches=self.control.switches,
            refusals=self.control.failures,
            arms=[ArmUnits(arm, count, arm in policy_set.rolled_back) for arm, count in units.items()],
            shadows={s.policy.name: (s.regret.summary(), s.fault is not None) for s in selector.shadows},
            audit_failures=self.control.audit.failures,
        )

    def _snapshot_target(self, instance: Instance, target: Target) -> TargetState:
        now, load_book = self.clock.now(), target.load_book
        away = NO_SHARE if self.peers is None else self.peers.share_of_far(target.id)
        stream = self.scheduler.indexer.describe_stream(target.id)
        sequencer = stream.sequencer if stream is not None else None
        return TargetState(
            target=target.id,
            instance=instance.id,
            state=instance.state.value,
            breaker=target.breaker.state(now),
            requests=load_book.requests - away.requests,
            prefilling=load_book.prefilling - away.prefilling,
            live_tokens=load_book.live_tokens,
            gauges=load_book.gauges,
            speed=target.latency_model.speed(now),
            slowdown=target.latency_model.slowdown,
            index_stats=stream.stats if stream is not None else NO_BLOCKS,
            recalled_blocks=stream.recalled_blocks if stream is not None else 0,
            stream_state=sequencer.state if sequencer is not None else "off",
            trusted=sequencer is not None and sequencer.trusted and target.overlap_accuracy.trusted,
            lag_s=sequencer.lag_s if sequencer is not None else None,
            batches=stream.batches if stream is not None else 0,
            events=sequencer.events if sequencer is not None else 0,
            gaps=sequencer.gaps if sequencer is not None else 0,
            replays=sequencer.replays if sequencer is not None else 0,
            restarts=sequencer.restarts if sequencer is not None else 0,
            overfull=stream.overfull if stream is not None else 0,
            contradictions=target.overlap_accuracy.contradictions,
            replay_silent=sequencer is not None and sequencer.replay_silent,
            malformed=stream.malformed if stream is not None else 0,
            skipped=stream.skipped if stream is not None else {},
        )

    def _describe_target(self, target: Target) -> dict[str, Any]:
        now = self.clock.now()
        speed = target.latency_model.speed(now)
        stream = self.scheduler.indexer.describe_stream(target.id)
        sequencer = stream.sequencer if stream is not None else None
        listening = sequencer is not None and sequencer.trusted and not sequencer.joined_late
        return {
            "id": target.id,
            "rank": target.rank,
            "breaker": target.breaker.state(now),
            "stuck": None if target.stall is None else str(target.stall),
            "block_tokens": target.block_tokens,
            "capacity_tokens": target.capacity_tokens,
            "load": to_plain(target.load_book.load(speed, now)),
            "speed": to_plain(speed),
            "decode_alone": to_plain(target.latency_model.decode_alone(now)),
            "speed_deviation": target.latency_model.deviation._asdict(),
            "slowdown": round(target.latency_model.slowdown, 2),
            "promises": {
                "trusted": target.overlap_accuracy.trusted,
                "drafts": target.overlap_accuracy.drafts,
                "kept": target.overlap_accuracy.confirmed,
                "broken": target.overlap_accuracy.overestimated,
                "missed": target.overlap_accuracy.underestimated,
                "contradictions": target.overlap_accuracy.contradictions,
                "alarm": target.overlap_accuracy.alarm if listening else None,
            },
            "stream": describe_stream(stream, target.events, now),
        }


def list_policies_in_force(policy_set: PolicySet) -> list[PolicyInForce]:
    """Return the active policy, the arms that get requests, and the shadows, each with its role and digest."""
    policies, experiment = policy_set.policies, policy_set.experiment
    active = PolicyInForce("active", policy_set.active, policy_set.policy.digest)
    if experiment is None:
        return [active]
    arms = [PolicyInForce("arm", arm, policies[experiment.policies[arm]].digest) for arm in policy_set.live_arms]
    shadows = [PolicyInForce("shadow", name, policies[name].digest) for name in experiment.shadows]
    return [active, *arms, *shadows]


def describe_stream(stream: EventStream | None, source: EventEndpoint | None, now: float) -> dict[str, Any] | None:
    """Describe a target's event stream, followed at `source`; None if the target has no stream."""
    if stream is None or (sequencer := stream.sequencer) is None:
        return None
    return {
        "state": sequencer.state,
        "silent": sequencer.silent,
        "joined_late": sequencer.joined_late,
        "turned_over": stream.turned_over,
        "last_seq": sequencer.last_seq,
        "silent_s": None if sequencer.last_heard_s is None else now - sequencer.last_heard_s,
        "lag_s": sequencer.lag_s,
        "events": sequencer.events,
        "gaps": sequencer.gaps,
        "replays": sequencer.replays,
        "replay_endpoint": None if source is None else source.replay_endpoint,
        "replay_silent": sequencer.replay_silent,
        "restarts": sequencer.restarts,
        "duplicates": sequencer.duplicates,
        "malformed": stream.malformed,
        "overfull": stream.overfull,
        "skipped": dict(stream.skipped),
        "blocks": {tier.name.lower(): stream.stats.blocks[tier] for tier in Tier},
        "orphans": stream.stats.orphans,
        "keyless_blocks": stream.keyless_blocks,
        "recalled_blocks": stream.recalled_blocks,
        "bytes": stream.stats.bytes,
    }
