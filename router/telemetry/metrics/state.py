"""What is the case right now, as metrics: taken from a snapshot at the moment of a scrape.

Nothing is kept here between scrapes, so the series of an instance that left are gone by themselves, and nobody has to
remember to set a gauge back. Counters of other rooms (event streams, tokenizers) come the same way. The composition
root makes the snapshot; this file does not know where its numbers come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from router.telemetry.metrics.admission import ModelAdmissionState, gate_families
from router.telemetry.metrics.policies import PolicyState, steering_families
from router.telemetry.metrics.token_ids import PassthroughState, handing_families
from router.telemetry.metrics.tokenization import PrefixCacheState, remembered_families

TARGET = ("target", "instance")
TIERS = ("gpu", "cpu", "disk")
INSTANCE_STATES = ("joining", "ready", "draining", "down")
BREAKER_STATES = ("closed", "open", "half_open")
STREAM_STATES = ("off", "new", "replaying", "live", "lost")
TOKENIZER_SOURCES = ("local", "remote")
LINKS = ("cpu", "disk", "pool", "pool_disk", "peer")
POOL_NAMES = ("waiting", "proved", "refuted")


class LinkState(NamedTuple):
    """The fitted cost of loading KV over one link."""

    link: str  # one of LINKS
    base_ms: float
    us_per_token: float
    samples: int


class TargetState(NamedTuple):
    """One target at the moment of the scrape. None: not known, and then there is no sample."""

    target: str
    instance: str
    state: str  # one of INSTANCE_STATES
    breaker: str  # one of BREAKER_STATES
    requests: int
    prefilling: int
    running: int | None
    waiting: int | None
    kv_usage: float | None
    index_blocks: tuple[int, int, int]  # per tier, as in TIERS
    index_bytes: int
    orphans: int
    stream_state: str  # one of STREAM_STATES
    trusted: bool
    lag_s: float | None
    batches: int
    events: int
    gaps: int
    replays: int
    restarts: int
    malformed: int
    skipped: Mapping[str, int]  # by reason
    speed_us_per_token: float
    speed_samples: int
    links: Sequence[LinkState]


class TokenizerState(NamedTuple):
    """One model's tokenizer."""

    model: str
    source: str  # one of TOKENIZER_SOURCES
    proofs: int  # comparisons with an engine's own tokens
    mismatches: int  # comparisons and answers that showed a difference


class PoolState(NamedTuple):
    """The shared pool, as requests find it."""

    masters: Mapping[str, bool]  # by name: whether it leads
    answers: Mapping[str, int]  # requests by what the pool said: held, nothing, or why it is unknown
    questions: int
    keys: int  # asked for
    question_s: float  # sum over `answered`
    answered: int
    names: Mapping[str, str]  # by model: one of POOL_NAMES


class RouterSnapshot(NamedTuple):
    targets: Sequence[TargetState]
    tokenizers: Sequence[TokenizerState]
    policy_faults: Mapping[tuple[str, str], int]  # by policy and plug-in
    discovery_trouble: Mapping[str, bool]  # by source
    unpaired: Mapping[str, int] = {}  # prefill halves that could not be, by why
    pool: PoolState | None = None  # None: there is none
    steering: PolicyState = PolicyState()
    handing: PassthroughState = PassthroughState()
    remembered: PrefixCacheState | None = None  # None: nothing is told of it
    gates: Sequence[ModelAdmissionState] = ()  # by model, where sessions are admitted


class TargetGauge(NamedTuple):
    """One metric with a sample per target."""

    family: type[CounterMetricFamily | GaugeMetricFamily]
    name: str
    meaning: str
    value: Callable[[TargetState], float | None]


READINGS = (
    TargetGauge(GaugeMetricFamily, "warmroute_target_requests", "our requests in flight there", lambda t: t.requests),
    TargetGauge(
        GaugeMetricFamily,
        "warmroute_target_prefilling_requests",
        "of those, still without a first byte",
        lambda t: t.prefilling,
    ),
    TargetGauge(
        GaugeMetricFamily,
        "warmroute_engine_running_requests",
        "requests running, as the engine last said",
        lambda t: t.running,
    ),
    TargetGauge(
        GaugeMetricFamily,
        "warmroute_engine_waiting_requests",
        "requests waiting, as the engine last said",
        lambda t: t.waiting,
    ),
    TargetGauge(
        GaugeMetricFamily,
        "warmroute_engine_kv_usage_ratio",
        "share of cache blocks in use by live requests, as the engine last said",
        lambda t: t.kv_usage,
    ),
    TargetGauge(
        GaugeMetricFamily,
        "warmroute_index_bytes",
        "estimated memory of what the index knows of the target",
        lambda t: t.index_bytes,
    ),
    TargetGauge(
        GaugeMetricFamily,
        "warmroute_index_orphan_blocks",
        "blocks whose parent is not known (yet)",
        lambda t: t.orphans,
    ),
    TargetGauge(
        GaugeMetricFamily,
        "warmroute_stream_trusted",
        "1 while the target's events are believed, 0 while approximate knowledge is used instead",
        lambda t: t.trusted,
    ),
    TargetGauge(
        GaugeMetricFamily,
        "warmroute_stream_lag_seconds",
        "age of the last event batch when it arrived, by both clocks",
        lambda t: t.lag_s,
    ),
    TargetGauge(CounterMetricFamily, "warmroute_stream_batches_total", "event batches received", lambda t: t.batches),
    TargetGauge(CounterMetricFamily, "warmroute_stream_events_total", "events applied", lambda t: t.events),
    TargetGauge(CounterMetricFamily, "warmroute_stream_gaps_total", "holes in the sequence", lambda t: t.gaps),
    TargetGauge(CounterMetricFamily, "warmroute_stream_replays_total", "replays asked for", lambda t: t.replays),
    TargetGauge(CounterMetricFamily, "warmroute_stream_restarts_total", "engine restarts seen", lambda t: t.restarts),
    TargetGauge(
        CounterMetricFamily,
        "warmroute_stream_decode_errors_total",
        "messages that could not be decoded",
        lambda t: t.malformed,
    ),
    TargetGauge(
        GaugeMetricFamily,
        "warmroute_prefill_us_per_token",
        "fitted prefill cost of the instance, microseconds per uncached token",
        lambda t: t.speed_us_per_token,
    ),
    TargetGauge(
        GaugeMetricFamily,
        "warmroute_prefill_samples",
        "requests behind that fit; 0: the configured prior",
        lambda t: t.speed_samples,
    ),
)


def families(now: RouterSnapshot) -> Iterator[Metric]:
    """Every metric of this file, with or without samples."""
    for reading in READINGS:
        family = reading.family(reading.name, reading.meaning, labels=TARGET)
        for t in now.targets:
            if (value := reading.value(t)) is not None:
                family.add_metric((t.target, t.instance), value)
        yield family
    yield from _states(now.targets)
    yield _index_blocks(now.targets)
    yield _skipped(now.targets)
    yield from _tokenizers(now.tokenizers)
    yield _policy_faults(now.policy_faults)
    yield _discovery_trouble(now.discovery_trouble)
    yield from _links(now.targets)
    yield _unpaired(now.unpaired)
    yield from _pool(now.pool)
    yield from steering_families(now.steering)
    yield from handing_families(now.handing)
    yield from remembered_families(now.remembered)
    yield from gate_families(now.gates)


def _states(targets: Sequence[TargetState]) -> Iterator[Metric]:
    """1 for the state a thing is in, 0 for the others, so that alerts can be written on any of them."""
    instance = GaugeMetricFamily(
        "warmroute_instance_state", "1 for the state the instance is in", labels=("instance", "state")
    )
    for name, current in {t.instance: t.state for t in targets}.items():
        for state in INSTANCE_STATES:
            instance.add_metric((name, state), state == current)
    breaker = GaugeMetricFamily(
        "warmroute_breaker_state", "1 for the state the target's breaker is in", labels=(*TARGET, "state")
    )
    stream = GaugeMetricFamily(
        "warmroute_stream_state", "1 for the state the target's event stream is in", labels=(*TARGET, "state")
    )
    for t in targets:
        for state in BREAKER_STATES:
            breaker.add_metric((t.target, t.instance, state), state == t.breaker)
        for state in STREAM_STATES:
            stream.add_metric((t.target, t.instance, state), state == t.stream_state)
    yield from (instance, breaker, stream)


def _index_blocks(targets: Sequence[TargetState]) -> Metric:
    family = GaugeMetricFamily(
        "warmroute_index_blocks", "blocks that the index knows the target to hold", labels=(*TARGET, "tier")
    )
    for t in targets:
        for tier, blocks in zip(TIERS, t.index_blocks, strict=True):
            family.add_metric((t.target, t.instance, tier), blocks)
    return family


def _skipped(targets: Sequence[TargetState]) -> Metric:
    family = CounterMetricFamily(
        "warmroute_stream_skipped_events_total",
        "events that say nothing about token blocks, by reason",
        labels=(*TARGET, "reason"),
    )
    for t in targets:
        for reason, count in t.skipped.items():
            family.add_metric((t.target, t.instance, reason), count)
    return family


def _tokenizers(tokenizers: Sequence[TokenizerState]) -> Iterator[Metric]:
    source = GaugeMetricFamily(
        "warmroute_tokenizer_source", "1 for where the model's token ids come from", labels=("model", "source")
    )
    proofs = CounterMetricFamily(
        "warmroute_tokenizer_proofs_total", "comparisons with an engine's own token ids", labels=("model",)
    )
    mismatches = CounterMetricFamily(
        "warmroute_tokenizer_mismatches_total",
        "comparisons and answers whose token count differed from ours",
        labels=("model",),
    )
    for t in tokenizers:
        for choice in TOKENIZER_SOURCES:
            source.add_metric((t.model, choice), choice == t.source)
        proofs.add_metric((t.model,), t.proofs)
        mismatches.add_metric((t.model,), t.mismatches)
    yield from (source, proofs, mismatches)


def _policy_faults(faults: Mapping[tuple[str, str], int]) -> Metric:
    family = CounterMetricFamily(
        "warmroute_policy_faults_total",
        "failures of a policy's plug-in; a choice that fails so is made by the fallback",
        labels=("policy", "plugin"),
    )
    for labels, count in faults.items():
        family.add_metric(labels, count)
    return family


def _discovery_trouble(trouble: Mapping[str, bool]) -> Metric:
    family = GaugeMetricFamily(
        "warmroute_discovery_trouble",
        "1 while the source of instances cannot be read and the last list stands",
        labels=("source",),
    )
    for source, troubled in trouble.items():
        family.add_metric((source,), troubled)
    return family


def _links(targets: Sequence[TargetState]) -> Iterator[Metric]:
    labels = (*TARGET, "link")
    us = GaugeMetricFamily(
        "warmroute_load_us_per_token", "fitted cost of loading KV, microseconds per token", labels=labels
    )
    base = GaugeMetricFamily("warmroute_load_base_ms", "fitted fixed cost of such a load, milliseconds", labels=labels)
    samples = GaugeMetricFamily(
        "warmroute_load_samples", "loads behind that fit; 0: the configured prior", labels=labels
    )
    for t in targets:
        for link in t.links:
            names = (t.target, t.instance, link.link)
            us.add_metric(names, link.us_per_token)
            base.add_metric(names, link.base_ms)
            samples.add_metric(names, link.samples)
    yield from (us, base, samples)


def _unpaired(unpaired: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(
        "warmroute_unpaired_requests_total",
        "requests answered by one instance because no prefill instance could hand over, by why",
        labels=("reason",),
    )
    for reason, count in unpaired.items():
        family.add_metric((reason,), count)
    return family


def _pool(pool: PoolState | None) -> Iterator[Metric]:
    leads = GaugeMetricFamily("warmroute_pool_master_leads", "1 for the Mooncake master that leads", labels=("master",))
    answers = CounterMetricFamily(
        "warmroute_pool_answers_total",
        "requests that asked the shared pool, by its answer: held, nothing, or why it is unknown",
        labels=("answer",),
    )
    questions = CounterMetricFamily("warmroute_pool_queries_total", "questions to the leading master")
    keys = CounterMetricFamily("warmroute_pool_keys_total", "keys asked for in them")
    seconds = CounterMetricFamily("warmroute_pool_query_seconds_total", "time until their answers, summed up")
    answered = CounterMetricFamily("warmroute_pool_queries_answered_total", "questions that were answered")
    names = GaugeMetricFamily(
        "warmroute_pool_names",
        "1 for whether our names of the model's blocks are proved to be the engines' own",
        labels=("model", "state"),
    )
    if pool is not None:
        for master, leading in pool.masters.items():
            leads.add_metric((master,), leading)
        for answer, count in pool.answers.items():
            answers.add_metric((answer,), count)
        questions.add_metric((), pool.questions)
        keys.add_metric((), pool.keys)
        seconds.add_metric((), pool.question_s)
        answered.add_metric((), pool.answered)
        for model, current in pool.names.items():
            for state in POOL_NAMES:
                names.add_metric((model, state), state == current)
    yield from (leads, answers, questions, keys, seconds, answered, names)
