"""What is the case, for people and for metrics: reads the rooms, changes nothing but what an operator asks for.

Implements `web.admin.Operations` and makes the snapshot behind the state metrics.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any, Protocol

from router.backends.discovery.base import Discovery
from router.backends.feeds.health import HealthProbe
from router.backends.mooncake.client import MooncakeStore
from router.backends.mooncake.report import PoolReport
from router.backends.no_kv_store import NoKvStore
from router.backends.token_ids.passthrough import TokenIdPassthrough
from router.clock import Clock
from router.control.control import Control
from router.fleet.instance import Instance, Target
from router.fleet.latency_model import LINKS
from router.kvcache.events import Tier
from router.kvcache.indexer import EventStream
from router.prompt.tokenization.tokenization import Tokenization
from router.prompt.tokenization.tokenization import TokenizationReport as Tokenizer
from router.request.admission.controller import QUEUES
from router.request.admission.model_admission import ModelAdmission
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.policy.record_view import describe_record, to_plain
from router.scheduling.scheduler import Scheduler
from router.telemetry.decision_log.writer import DecisionLogWriter
from router.telemetry.metrics.snapshot import (
    ArmUnits,
    LinkState,
    ModelAdmissionState,
    PolicyInForce,
    PolicyState,
    PoolState,
    PrefixCacheState,
    RouterSnapshot,
    TargetState,
)
from router.telemetry.recent_records import RecentRecords


class OtherWorkers(Protocol):
    """Other processes that answer requests of this router."""

    def workers(self) -> list[dict[str, Any]]:
        """Of all, this one first."""

    async def record(self, id: str) -> dict[str, Any] | None: ...

    async def records(self, limit: int) -> list[dict[str, Any]]:
        """The newest of each, in no order."""


class Status:
    def __init__(
        self,
        core: Scheduler,
        tokens: Tokenization,
        handing: TokenIdPassthrough,
        pool: MooncakeStore | NoKvStore,
        health: HealthProbe,
        discoveries: Mapping[str, Discovery],
        ring: RecentRecords,
        control: Control,
        decision_log: DecisionLogWriter | None,
        clock: Clock,
        run_id: str,
        others: OtherWorkers | None = None,
        gates: Iterable[ModelAdmission] = (),
    ) -> None:
        self._core = core
        self._tokens = tokens
        self._handing = handing
        self._pool = pool
        self._health = health
        self._discoveries = discoveries
        self._ring = ring
        self._control = control
        self._decision_log = decision_log
        self._clock = clock
        self._run_id = run_id
        self._others = others
        self._gates = gates

    # web.admin.Operations

    def instances(self) -> list[dict[str, Any]]:
        takers, tokenizers = self._handing.report().instances, self._tokens.report()
        return [
            {
                "id": instance.id,
                "url": instance.config.url,
                "state": instance.state.value,
                "trouble": self._health.trouble(instance.id),
                "models": [card.id for card in instance.cards],
                "tokenizer": self._tokenizer(tokenizers.get(instance.base or "")),
                "token_ids": takers[instance.id]._asdict() if instance.id in takers else None,
                "targets": [self._target(target) for target in instance.targets.values()],
            }
            for instance in self._core.fleet
        ]

    def _tokenizer(self, told: Tokenizer | None) -> dict[str, Any] | None:
        """None: there is none here. Memory is that of all models together."""
        if told is None:
            return None
        memory = self._tokens.memory
        return {**told._asdict(), "memory_bytes": memory.held_bytes, "memory_limit_bytes": memory.limit_bytes}

    def discovery(self) -> dict[str, str | None]:
        return {name: discovery.trouble for name, discovery in self._discoveries.items()}

    def drain(self, instance: str, on: bool) -> bool:
        return self._core.drain(instance, on)

    async def record(self, record_id: str) -> dict[str, Any] | None:
        record = self._ring.get(record_id)
        if record is not None:
            return describe_record(record)
        return None if self._others is None else await self._others.record(record_id)

    async def records(self, limit: int) -> list[dict[str, Any]]:
        own = [describe_record(record) for record in self._ring.latest(limit)]
        if self._others is None:
            return own
        together = own + await self._others.records(limit)
        return sorted(together, key=itemgetter("at_wall_s"), reverse=True)[:limit]

    def workers(self) -> list[dict[str, Any]]:
        if self._others is not None:
            return self._others.workers()
        own = {"number": 0, "pid": os.getpid(), "run": self._run_id, "up": True}
        return [own | {"policies": self._core.selector.policy_set.digests, "trouble": None}]

    def pool(self) -> dict[str, Any] | None:
        told = self._pool.report()
        return None if told is None else describe_pool(told)

    def admission(self) -> list[dict[str, Any]]:
        return [describe_admission(gate, self._clock.now()) for gate in self._gates]

    # the state metrics

    def snapshot(self) -> RouterSnapshot:
        memory = self._tokens.memory
        return RouterSnapshot(
            targets=[self._state(i, target) for i in self._core.fleet for target in i.targets.values()],
            tokenizers=self._tokens.report(),
            policy_faults=self._core.selector.faults,
            discovery_trouble={name: trouble is not None for name, trouble in self.discovery().items()},
            unpaired=self._core.peers.unpaired,
            pool=pool_state(self._pool.report()),
            policies=self._policies(),
            passthrough=self._handing.report(),
            prefix_cache=PrefixCacheState(memory.held_bytes, memory.limit_bytes, memory.evicted),
            admission=[gate_state(gate) for gate in self._gates],
        )

    def _policies(self) -> PolicyState:
        regime, trial = self._core.selector.policy_set, self._core.experiment
        return PolicyState(
            in_force=list_policies_in_force(regime),
            switches=self._control.switches,
            refusals=self._control.failures,
            arms=[] if trial is None else [ArmUnits(a, n, a in regime.rolled_back) for a, n in trial.units.items()],
            shadows={s.policy.name: (s.regret.summary(), s.fault is not None) for s in self._core.selector.shadows},
            decision_log=None if self._decision_log is None else self._decision_log.stats,
            audit_failures=self._control.audit.failures,
        )

    def _state(self, instance: Instance, target: Target) -> TargetState:
        now = self._clock.now()
        books, speed = target.load_book, target.latency_model.speed(now)
        stream = self._core.indexer.describe_stream(target.id)
        book = stream.sequencer if stream is not None else None
        return TargetState(
            target=target.id,
            instance=instance.id,
            state=instance.state.value,
            breaker=target.breaker.state(now),
            requests=books.requests,
            prefilling=books.prefilling,
            running=books.gauges.running,
            waiting=books.gauges.waiting,
            kv_usage=books.gauges.kv_usage,
            index_blocks=stream.stats.blocks if stream is not None else (0, 0, 0),
            index_bytes=stream.stats.bytes if stream is not None else 0,
            orphans=stream.stats.orphans if stream is not None else 0,
            stream_state=book.state if book is not None else "off",
            trusted=book is not None and book.trusted and target.overlap_accuracy.trusted,
            lag_s=book.lag_s if book is not None else None,
            batches=stream.batches if stream is not None else 0,
            events=book.events if book is not None else 0,
            gaps=book.gaps if book is not None else 0,
            replays=book.replays if book is not None else 0,
            restarts=book.restarts if book is not None else 0,
            malformed=stream.malformed if stream is not None else 0,
            skipped=stream.skipped if stream is not None else {},
            speed_us_per_token=speed.us_per_token,
            speed_samples=speed.samples,
            links=[LinkState(link, *getattr(speed, link)[:3]) for link in LINKS],
        )

    def _target(self, target: Target) -> dict[str, Any]:
        now = self._clock.now()
        speed = target.latency_model.speed(now)
        stream = self._core.indexer.describe_stream(target.id)
        book = stream.sequencer if stream is not None else None
        listening = book is not None and book.trusted and not book.joined_late
        return {
            "id": target.id,
            "rank": target.rank,
            "breaker": target.breaker.state(now),
            "block_tokens": target.block_tokens,
            "capacity_tokens": target.capacity_tokens,
            "load": to_plain(target.load_book.load(speed, now)),
            "speed": to_plain(speed),
            "promises": {
                "trusted": target.overlap_accuracy.trusted,
                "kept": target.overlap_accuracy.confirmed,
                "broken": target.overlap_accuracy.overestimated,
                "missed": target.overlap_accuracy.underestimated,
                "alarm": target.overlap_accuracy.alarm if listening else None,
            },
            "stream": describe_stream(stream, now),
        }


def list_policies_in_force(regime: PolicySet) -> list[PolicyInForce]:
    active = PolicyInForce("active", regime.active, regime.policy.digest)
    if regime.experiment is None:
        return [active]
    arms = [PolicyInForce("arm", name, regime.policies[name].digest) for name in regime.live_arms]
    shadows = [PolicyInForce("shadow", name, regime.policies[name].digest) for name in regime.experiment.shadows]
    return [active, *arms, *shadows]


def describe_stream(stream: EventStream | None, now: float) -> dict[str, Any] | None:
    """None: the target has no event stream."""
    if stream is None or (book := stream.sequencer) is None:
        return None
    return {
        "state": book.state,
        "joined_late": book.joined_late,
        "turned_over": stream.turned_over,
        "last_seq": book.last_seq,
        "silent_s": None if book.last_heard_s is None else now - book.last_heard_s,
        "lag_s": book.lag_s,
        "events": book.events,
        "gaps": book.gaps,
        "replays": book.replays,
        "restarts": book.restarts,
        "duplicates": book.duplicates,
        "malformed": stream.malformed,
        "skipped": dict(stream.skipped),
        "blocks": {tier.name.lower(): stream.stats.blocks[tier] for tier in Tier},
        "orphans": stream.stats.orphans,
        "bytes": stream.stats.bytes,
    }


def describe_pool(told: PoolReport) -> dict[str, Any]:
    return {
        "leader": told.leader,
        "masters": [to_plain(master) for master in told.masters],
        "answers": count_answers(told),
        "asked": to_plain(told.queries),
        "models": [
            {**to_plain(model), "chain": None if model.chain is None else str(model.chain)} for model in told.models
        ],
        "remembered_digests": told.remembered_digests,
    }


def describe_admission(gate: ModelAdmission, now: float) -> dict[str, Any]:
    """Who is live behind a model's door, what fits, and who waits in front of it, in order."""
    state = gate.state()
    return {
        "model": gate.model,
        "capacity_tokens": state.capacity_tokens,
        "context_tokens": round(state.live.context_tokens),
        "mean_context_tokens": state.live.mean_tokens,
        "live_sessions": round(state.live.sessions, 1),
        "known_sessions": state.known,
        "waiting": [
            {
                "position": hold.position,
                "queue": hold.admission.queue,
                "prompt_tokens": hold.admission.prompt_tokens or None,
                "waited_s": round(now - hold.admission.since_s, 3),
                "expected_s": None if hold.expected_s is None else round(hold.expected_s, 3),
            }
            for hold in state.waiting
        ],
    }


def gate_state(gate: ModelAdmission) -> ModelAdmissionState:
    state = gate.state()
    queues = Counter(hold.admission.queue for hold in state.waiting)
    return ModelAdmissionState(
        gate.model,
        {queue: queues[queue] for queue in QUEUES},
        state.live.sessions,
        state.live.context_tokens,
        state.capacity_tokens,
    )


def pool_state(told: PoolReport | None) -> PoolState | None:
    if told is None:
        return None
    return PoolState(
        masters={master.instance: master.instance == told.leader for master in told.masters},
        answers=count_answers(told),
        queries=told.queries.questions,
        keys=told.queries.keys,
        query_s=told.queries.answer_s,
        answered=told.queries.answers,
        names={m.model: "refuted" if m.trouble is not None else m.calibration for m in told.models},
    )


def count_answers(told: PoolReport) -> dict[str, int]:
    """Requests by what the pool said of their prompts."""
    return {"held": told.hits, "nothing": told.misses} | {str(reason): n for reason, n in told.unknown.items()}
