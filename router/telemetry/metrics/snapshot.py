"""The state of the router at the moment of a scrape, as plain values.

The composition root takes the snapshot; neither this module nor `state.py`, which turns it into metrics, depends on
the sources of its values. None means unknown and produces no sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from prometheus_client.core import Metric

from router.backends.token_ids.passthrough import PassthroughReport
from router.fleet.engine_facts import Gauges
from router.kvcache.index import IndexStats
from router.prompt.tokenization.tokenization import TokenizationReport
from router.scheduling.experiments.regret import ChoiceComparison
from scorers.contract import Speed

INSTANCE_STATES = ("joining", "ready", "draining", "drained", "down")
BREAKER_STATES = ("closed", "open", "half_open", "stuck")
STREAM_STATES = ("off", "new", "replaying", "live", "lost")
TOKENIZER_SOURCES = ("local", "remote", "unknown")
LINKS = ("cpu", "disk", "pool", "pool_disk", "peer")
ROLES = ("active", "arm", "shadow")


class TargetState(NamedTuple):
    """One target."""

    target: str
    instance: str
    state: str  # one of INSTANCE_STATES
    breaker: str  # one of BREAKER_STATES
    requests: int  # of this router, without those of other replicas
    prefilling: int
    live_tokens: int  # of KV memory, as in `scorers.contract.Load`
    gauges: Gauges  # as last reported by the engine
    speed: Speed
    slowdown: float  # of the instance, compared with its usual speed; at least 1
    index_stats: IndexStats
    recalled_blocks: int  # learned from other evidence than their events
    stream_state: str  # one of STREAM_STATES
    trusted: bool | None  # None: its events are not followed
    lag_s: float | None
    batches: int
    events: int
    gaps: int
    replays: int
    replay_silent: bool
    silent: bool  # its engine's answers show that events are missing
    overfull: int
    contradictions: int
    predictions: tuple[int, int, int]  # of overlap: kept, broken and missed
    malformed: int
    skipped: Mapping[str, int]  # by reason


class PolicyInForce(NamedTuple):
    role: str  # one of ROLES
    policy: str
    digest: str  # of its specification


class ArmUnits(NamedTuple):
    arm: str
    units: int  # counted so far
    rolled_back: bool


class PolicyState(NamedTuple):
    """Policies in force, their switches, and the results of experiments and shadows."""

    in_force: Sequence[PolicyInForce] = ()
    switches: Mapping[str, int] = {}  # by source: files, admin, guard, replicas
    refusals: Mapping[str, int] = {}  # by the source of the policies that could not be read or built
    arms: Sequence[ArmUnits] = ()
    shadows: Mapping[str, tuple[ChoiceComparison, bool]] = {}  # by policy, with whether it is out
    audit_failures: int | None = None  # writes of the audit log that failed; None: there is no audit log


class PrefixCacheState(NamedTuple):
    """The memory of tokenized prompts and their digests, over all models."""

    bytes: int
    limit_bytes: int
    evicted: int


class ConnectionState(NamedTuple):
    """The connections of clients, on the public listener."""

    open: int
    refused: Mapping[str, int]  # by reason


class ReplicaReport(NamedTuple):
    """One configured address, or a process that sends frames but is not configured here (`address` None)."""

    address: str | None
    run: str | None  # id of its run; None: it has not answered yet
    own: bool  # this router itself
    up: bool  # in both directions
    last_heard_s: float | None  # since its last frame; None: no frames arrive
    lag_s: float | None  # half the time from the last beat to its acknowledgement; None: no acknowledgement
    bytes_sent: int
    bytes_received: int  # since its first frame, or its first frame after a silence
    unsent: int  # frames for which there was no connection, or no room
    same_policies: bool | None = None  # as in force here; None: it is not up, or has not reported them
    same_instances: bool | None = None  # it has instances of the same names as this router
    instances: int | None = None  # the number of instances that it has


class RouterSnapshot(NamedTuple):
    targets: Sequence[TargetState] = ()
    restarts: Mapping[str, int] = {}  # by instance
    distrusted: Mapping[str, bool] = {}  # by instance: its events are ignored
    over_limit: Mapping[tuple[str, str], int] = {}  # by instance and bound
    tokenizers: Mapping[str, TokenizationReport] = {}  # by model
    policy_faults: Mapping[tuple[str, str], int] = {}  # by policy and plug-in
    discovery_trouble: Mapping[str, bool] = {}  # by source
    discovery_age_s: Mapping[str, float | None] = {}  # since it last answered, by source
    unpaired: Mapping[str, int] = {}  # requests without a prefill half, by reason
    policies: PolicyState = PolicyState()
    passthrough: PassthroughReport = PassthroughReport({}, {}, {})
    prefix_cache: PrefixCacheState | None = None
    connections: ConnectionState | None = None
    replicas: Sequence[ReplicaReport] = ()
    features: Sequence[Metric] = ()  # the metrics of features
