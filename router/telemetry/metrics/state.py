"""The state metrics: turns a snapshot into Prometheus metric families when scraped.

Nothing is kept between scrapes, so the series of an instance that left disappear by themselves, and no gauge must
be reset. Counters of other parts (event streams, tokenizers) are included in the same way. Names of policies are a
closed set: anyone who may add one may also read this page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client.core import Metric

from router.prompt.tokenization.tokenization import TokenizationReport
from router.telemetry.metrics.family import Samples, build_family, by_label, one_of
from router.telemetry.metrics.label_values import TIERS
from router.telemetry.metrics.snapshot import (
    BREAKER_STATES,
    INSTANCE_STATES,
    LINKS,
    STREAM_STATES,
    TOKENIZER_SOURCES,
    ConnectionState,
    PolicyState,
    PrefixCacheState,
    ReplicaReport,
    RouterSnapshot,
    TargetState,
)

TARGET = ("target", "engine")
MODEL, POLICY, REASON, SOURCE = ("model",), ("policy",), ("reason",), ("source",)

HELP = {
    "target_requests": "requests that this router has in flight there",
    "target_prefilling_requests": "of those, without a first byte yet",
    "target_live_tokens": "tokens of KV memory in use or booked there; blocks that requests share count once",
    "engine_running_requests": "requests running, as last reported by the engine",
    "engine_waiting_requests": "requests waiting, as last reported by the engine",
    "engine_kv_usage_ratio": "share of cache blocks in use by live requests, as last reported by the engine",
    "index_bytes": "estimated memory of the target's index entries",
    "index_orphan_blocks": "blocks whose parent is not known (yet)",
    "index_recalled_blocks_total": "blocks whose events were missed, learned from later events and from answers",
    "stream_trusted": "1 while the target's events are trusted, 0 while approximate knowledge is used instead; no "
    "sample for a target whose events are not followed",
    "stream_lag_seconds": "age of the last event batch when it arrived, by both clocks",
    "stream_batches_total": "event batches received",
    "stream_events_total": "events applied",
    "stream_gaps_total": "gaps in the sequence",
    "stream_replays_total": "replays requested",
    "stream_replay_silent": "1 while the replay endpoint leaves requests without any answer",
    "stream_silent": "1 while the engine computes blocks of which no event arrives, or hits blocks that none announced",
    "stream_overfull_total": "times that the index held more of the target than its GPU can, and forgot it",
    "stream_contradictions_total": "times that answers proved the index of the target wrong, and it was forgotten",
    "stream_decode_errors_total": "messages that could not be decoded",
    "prefill_seconds_per_token": "fitted prefill cost of the instance, per uncached token",
    "engine_slowdown_ratio": "how many times as long as usual prefills of the instance took when last measured; "
    "at least 1",
    "prefill_samples": "requests behind that fit; 0: the configured prior",
    "instance_state": "1 for the state the instance is in",
    "engine_restarts_total": "processes of the engine that took the place of an earlier one",
    "engine_distrusted": "1 for an instance whose events are ignored, because it sent more than the router takes in",
    "engine_limit_total": "answers and messages of an engine beyond a bound of the router, by bound",
    "breaker_state": "1 for the state the target's breaker is in",
    "stream_state": "1 for the state the target's event stream is in",
    "index_blocks": "blocks that the index has for the target",
    "overlap_predictions_total": "answers that show whether the overlap predicted from events was right: kept, broken "
    "(less was cached), missed (a hit, and nothing was predicted)",
    "stream_skipped_events_total": "events that do not concern token blocks, by reason",
    "tokenizer_source": "1 for the source of the token ids of the model's chats; unknown: no source is right",
    "tokenizer_proofs_total": "comparisons with the ids that an engine generates from, in which every chat agreed",
    "tokenizer_mismatches_total": "instances that generate from other ids than a tokenizer gives, and answers with "
    "another count",
    "policy_faults_total": "failures of a policy's plug-in; the fallback policy decides instead",
    "discovery_trouble": "1 while the source of instances cannot be read and its last list is used",
    "discovery_age_seconds": "time since the source of instances last answered; no sample for the configuration itself",
    "load_seconds_per_token": "fitted cost of loading KV, per token; no sample for a link without loads",
    "load_base_seconds": "fitted fixed cost of such a load",
    "load_samples": "loads behind that fit",
    "unpaired_requests_total": "requests answered by one instance because no prefill instance could help, by reason",
    "policy_in_force": "1 for each policy that decides or is evaluated as a shadow",
    "policy_switches_total": "policy switches, by source",
    "policy_refusals_total": "policies and experiments that were refused, by source",
    "arm_units": "units counted in the experiment so far",
    "arm_rolled_back": "1 for an arm that was rolled back",
    "shadow_decisions_total": "decisions that a shadow evaluated",
    "shadow_agreements_total": "of those, where it would have chosen the same target",
    "shadow_ttft_regret_seconds": "predicted time to first token of a shadow's choices minus the actual ones, mean",
    "shadow_overlap_regret_tokens": "prompt tokens held by the chosen targets minus by the shadow's, mean",
    "shadow_load_spread": "requests of the busiest target over the mean, by the shadow's choices",
    "shadow_out": "1 for a shadow that failed and is no longer evaluated",
    "audit_failures_total": "writes of the audit log that failed",
    "token_id_passthrough_supported": "1 for an instance that was seen to accept token ids",
    "token_id_passthrough_prompts_total": "prompts sent to an engine together with their token ids",
    "token_id_passthrough_skipped_total": "prompts whose token ids were known but not sent, by reason",
    "memory_bytes": "estimated memory of tokenized prompts and their digests",
    "memory_limit_bytes": "its limit (`tokens.memory_bytes`)",
    "memory_evictions_total": "pieces and digests evicted for lack of room",
    "remembered_tokens_total": "prompt tokens found in the prefix cache",
    "tokenised_tokens_total": "prompt tokens tokenized by the router",
    "tokenizer_incremental": "1 where only the new part of a prompt is tokenized, 0 where always the whole",
    "client_connections": "open connections of clients",
    "client_connections_refused_total": "connections closed at once, by reason: total (as many are open as may be), "
    "share (its client has its share of them), handshake (of TLS)",
    "replica_up": "1 while frames of the other router arrive without a gap, and it acknowledges what it gets",
    "replica_last_heard_seconds": "time since its last frame; no sample while none comes",
    "replica_lag_seconds": "half the time from the last beat to its acknowledgement",
    "replica_bytes_total": "bytes of messages, before encryption, by direction: sent, received (of its present run)",
    "replica_same_policies": "1 while it has the same policies in force as this router; no sample while it is not up",
    "replica_same_instances": "1 while it knows instances of the same names; no sample while it is not up",
    "replica_unsent_frames_total": "frames for which there was no connection to it, or no room",
}
"""Help texts by name, without the prefix `warmroute_`. Names that end with `_total` are counters, all others
gauges.
"""

TARGET_VALUES: dict[str, Callable[[TargetState], float | None]] = {
    "target_requests": lambda t: t.requests,
    "target_prefilling_requests": lambda t: t.prefilling,
    "target_live_tokens": lambda t: t.live_tokens,
    "engine_running_requests": lambda t: t.gauges.running,
    "engine_waiting_requests": lambda t: t.gauges.waiting,
    "engine_kv_usage_ratio": lambda t: t.gauges.kv_usage,
    "index_bytes": lambda t: t.index_stats.bytes,
    "index_orphan_blocks": lambda t: t.index_stats.orphans,
    "index_recalled_blocks_total": lambda t: t.recalled_blocks,
    "stream_trusted": lambda t: t.trusted,
    "stream_lag_seconds": lambda t: t.lag_s,
    "stream_batches_total": lambda t: t.batches,
    "stream_events_total": lambda t: t.events,
    "stream_gaps_total": lambda t: t.gaps,
    "stream_replays_total": lambda t: t.replays,
    "stream_replay_silent": lambda t: t.replay_silent,
    "stream_silent": lambda t: t.silent,
    "stream_overfull_total": lambda t: t.overfull,
    "stream_contradictions_total": lambda t: t.contradictions,
    "stream_decode_errors_total": lambda t: t.malformed,
    "prefill_seconds_per_token": lambda t: t.speed.us_per_token / 1e6,
    "prefill_samples": lambda t: t.speed.samples,
}


def _family(name: str, labels: Sequence[str], samples: Samples) -> Metric:
    return build_family(name, HELP[name], labels, samples)


def families(now: RouterSnapshot) -> Iterator[Metric]:
    """Yield every metric of this module, with or without samples, and the metrics of features."""
    for name, value in TARGET_VALUES.items():
        yield _family(name, TARGET, (((t.target, t.instance), value(t)) for t in now.targets))
    yield from _target_states(now.targets)
    yield _family("engine_restarts_total", ("engine",), by_label(now.restarts))
    yield _family("engine_distrusted", ("engine",), by_label(now.distrusted))
    yield _family("engine_limit_total", ("engine", "limit"), now.over_limit.items())
    yield from _tokenizers(now.tokenizers)
    yield _family("policy_faults_total", ("policy", "plugin"), now.policy_faults.items())
    yield _family("discovery_trouble", SOURCE, by_label(now.discovery_trouble))
    yield _family("discovery_age_seconds", SOURCE, by_label(now.discovery_age_s))
    yield from _links(now.targets)
    yield _family("unpaired_requests_total", REASON, by_label(now.unpaired))
    yield from _policies(now.policies)
    supported = {instance: support.takes for instance, support in now.passthrough.instances.items()}
    yield _family("token_id_passthrough_supported", ("engine",), by_label(supported))
    yield _family("token_id_passthrough_prompts_total", MODEL, by_label(now.passthrough.sent))
    yield _family("token_id_passthrough_skipped_total", REASON, by_label(now.passthrough.not_sent))
    yield from _prefix_cache(now.prefix_cache, now.tokenizers)
    yield from _connections(now.connections)
    yield from _replicas([replica for replica in now.replicas if replica.address is not None and not replica.own])
    yield from now.features


def _target_states(targets: Sequence[TargetState]) -> Iterator[Metric]:
    states = {(t.instance,): t.state for t in targets}
    breakers = (((t.target, t.instance), t.breaker) for t in targets)
    streams = (((t.target, t.instance), t.stream_state) for t in targets)
    blocks = (((t.target, t.instance, tier), t.index_stats.blocks[n]) for t in targets for n, tier in enumerate(TIERS))
    outcomes = ("kept", "broken", "missed")
    predictions = (
        ((t.target, t.instance, o), n) for t in targets for o, n in zip(outcomes, t.predictions, strict=True)
    )
    skipped = (((t.target, t.instance, why), count) for t in targets for why, count in t.skipped.items())
    slowdowns = {(t.instance,): t.slowdown for t in targets}
    yield _family("engine_slowdown_ratio", ("engine",), slowdowns.items())
    yield _family("instance_state", ("engine", "state"), one_of(INSTANCE_STATES, states.items()))
    yield _family("breaker_state", (*TARGET, "state"), one_of(BREAKER_STATES, breakers))
    yield _family("stream_state", (*TARGET, "state"), one_of(STREAM_STATES, streams))
    yield _family("index_blocks", (*TARGET, "tier"), blocks)
    yield _family("overlap_predictions_total", (*TARGET, "outcome"), predictions)
    yield _family("stream_skipped_events_total", (*TARGET, "reason"), skipped)


def _tokenizers(reports: Mapping[str, TokenizationReport]) -> Iterator[Metric]:
    sources = one_of(TOKENIZER_SOURCES, (((model,), report.source) for model, report in reports.items()))
    yield _family("tokenizer_source", ("model", "source"), sources)
    yield _family("tokenizer_proofs_total", MODEL, by_label({m: r.proofs for m, r in reports.items()}))
    yield _family("tokenizer_mismatches_total", MODEL, by_label({m: r.mismatches for m, r in reports.items()}))


def _links(targets: Sequence[TargetState]) -> Iterator[Metric]:
    """Yield the metrics of the links that have loaded KV. A prior says nothing of an engine, and most engines use few
    links.
    """
    links = [((t.target, t.instance, link), getattr(t.speed, link)) for t in targets for link in LINKS]
    used = [(names, cost) for names, cost in links if cost is not None and cost.samples]
    labels = (*TARGET, "link")
    yield _family("load_seconds_per_token", labels, ((names, cost.us_per_token / 1e6) for names, cost in used))
    yield _family("load_base_seconds", labels, ((names, cost.base_ms / 1e3) for names, cost in used))
    yield _family("load_samples", labels, ((names, cost.samples) for names, cost in used))


def _policies(now: PolicyState) -> Iterator[Metric]:
    """Yield the metrics of policies, experiments, shadows and the audit log."""
    yield _family("policy_in_force", ("role", "policy", "digest"), ((policy, 1) for policy in now.in_force))
    yield _family("policy_switches_total", SOURCE, by_label(now.switches))
    yield _family("policy_refusals_total", SOURCE, by_label(now.refusals))
    yield _family("arm_units", ("arm",), by_label({arm.arm: arm.units for arm in now.arms}))
    yield _family("arm_rolled_back", ("arm",), by_label({arm.arm: arm.rolled_back for arm in now.arms}))
    shadows = [((policy,), comparison) for policy, (comparison, _) in now.shadows.items()]
    ttft_s = ((policy, None if s.ttft_ms is None else s.ttft_ms / 1000) for policy, s in shadows)
    overlap = ((policy, None if s.overlap_tokens is None else -s.overlap_tokens) for policy, s in shadows)
    yield _family("shadow_decisions_total", POLICY, ((policy, s.decisions) for policy, s in shadows))
    yield _family("shadow_agreements_total", POLICY, ((policy, s.agreed) for policy, s in shadows))
    yield _family("shadow_ttft_regret_seconds", POLICY, ttft_s)
    yield _family("shadow_overlap_regret_tokens", POLICY, overlap)
    yield _family("shadow_load_spread", POLICY, ((policy, s.uneven_other) for policy, s in shadows))
    yield _family("shadow_out", POLICY, by_label({policy: out for policy, (_, out) in now.shadows.items()}))
    yield _family("audit_failures_total", (), [((), now.audit_failures)])


def _replicas(replicas: Sequence[ReplicaReport]) -> Iterator[Metric]:
    named = {replica.address or "": replica for replica in replicas}
    label = ("replica",)
    yield _family("replica_up", label, by_label({name: r.up for name, r in named.items()}))
    yield _family("replica_last_heard_seconds", label, by_label({n: r.last_heard_s for n, r in named.items()}))
    yield _family("replica_lag_seconds", label, by_label({name: r.lag_s for name, r in named.items()}))
    policies = by_label({name: r.same_policies for name, r in named.items()})
    yield _family("replica_same_policies", label, policies)
    instances = by_label({name: r.same_instances for name, r in named.items()})
    yield _family("replica_same_instances", label, instances)
    sent = (((name, "sent"), replica.bytes_sent) for name, replica in named.items())
    received = (((name, "received"), replica.bytes_received) for name, replica in named.items())
    yield _family("replica_bytes_total", ("replica", "direction"), (*sent, *received))
    yield _family("replica_unsent_frames_total", label, by_label({n: r.unsent for n, r in named.items()}))


def _prefix_cache(now: PrefixCacheState | None, reports: Mapping[str, TokenizationReport]) -> Iterator[Metric]:
    held, limit, evicted = now or (None, None, None)
    models = reports.items() if now else ()
    yield _family("memory_bytes", (), [((), held)])
    yield _family("memory_limit_bytes", (), [((), limit)])
    yield _family("memory_evictions_total", (), [((), evicted)])
    yield _family("remembered_tokens_total", MODEL, by_label({m: r.remembered_tokens for m, r in models}))
    yield _family("tokenised_tokens_total", MODEL, by_label({m: r.tokenised_tokens for m, r in models}))
    yield _family("tokenizer_incremental", MODEL, by_label({m: r.incremental for m, r in models}))


def _connections(now: ConnectionState | None) -> Iterator[Metric]:
    open_, refused = now or (None, {})
    yield _family("client_connections", (), [((), open_)])
    yield _family("client_connections_refused_total", REASON, by_label(refused))
