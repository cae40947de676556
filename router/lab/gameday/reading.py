"""The router's metrics at one moment, and which of them show a fault.

Alerts are made of metrics, so nobody is notified of a fault that the metrics do not show.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from router.config.sections.gameday import FaultKind

SAMPLE = re.compile(r"^warmroute_(\w+?)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
SLOWER = 1.5  # from which a slowdown counts as noticed: the threshold of the alert WarmrouteEngineSlow
LATE_S = 5.0  # of events by both clocks: the threshold of the alert WarmrouteStreamLag
WANTED = frozenset({
    "instance_state", "breaker_state", "stream_state", "stream_trusted", "engine_restarts_total", "stream_gaps_total",
    "stream_contradictions_total", "stream_lag_seconds", "engine_slowdown_ratio", "decision_log_failures_total",
    "pool_master_leads", "policy_in_force", "target_requests", "replica_up",
})  # fmt: skip


class MetricsReading(NamedTuple):
    """The state of the router according to its metrics page. Instances and targets are given by name."""

    not_ready: frozenset[str] = frozenset()
    tripped: frozenset[str] = frozenset()  # targets whose breaker is not closed
    untrusted: frozenset[str] = frozenset()  # targets whose events are not trusted, or whose stream is not live
    restarts: float = 0.0
    gaps: float = 0.0
    contradictions: float = 0.0
    lag_s: float = 0.0  # the largest, without its sign
    slow: frozenset[str] = frozenset()  # instances that are slower than usual
    write_failures: float = 0.0  # of the decision log
    has_pool: bool | None = None  # whether a master leads; None: there is no pool
    policies: frozenset[str] = frozenset()  # that decide
    booked: float = 0.0  # requests in the books of all targets
    silent: frozenset[str] = frozenset()  # other routers from which nothing arrives


def read_metrics(page: str) -> MetricsReading:
    """Return the reading of a metrics page."""
    samples: dict[str, list[tuple[dict[str, str], float]]] = {name: [] for name in WANTED}
    for name, labels, value in SAMPLE.findall(page):
        if name in WANTED:
            samples[name].append((dict(LABEL.findall(labels)), float(value)))

    def total(name: str) -> float:
        return sum(value for _, value in samples[name])

    def where(name: str, label: str, state: str) -> frozenset[str]:
        """Return the values of `label` that are not in `state`."""
        found = samples[name]
        return frozenset(labels[label] for labels, value in found if labels["state"] == state and value != 1)

    doubted = frozenset(labels["target"] for labels, value in samples["stream_trusted"] if value != 1)
    leads = samples["pool_master_leads"]
    return MetricsReading(
        not_ready=where("instance_state", "engine", "ready"),
        tripped=where("breaker_state", "target", "closed"),
        untrusted=doubted | where("stream_state", "target", "live"),
        restarts=total("engine_restarts_total"),
        gaps=total("stream_gaps_total"),
        contradictions=total("stream_contradictions_total"),
        lag_s=max((abs(value) for _, value in samples["stream_lag_seconds"]), default=0.0),
        slow=frozenset(labels["engine"] for labels, value in samples["engine_slowdown_ratio"] if value >= SLOWER),
        write_failures=total("decision_log_failures_total"),
        has_pool=any(value == 1 for _, value in leads) if leads else None,
        policies=frozenset(labels["policy"] for labels, _ in samples["policy_in_force"] if labels["role"] != "shadow"),
        booked=total("target_requests"),
        silent=frozenset(labels["replica"] for labels, value in samples["replica_up"] if value != 1),
    )


def is_well(now: MetricsReading, before: MetricsReading, clients: int) -> bool:
    """Return whether no fault shows that did not show `before`, and no more requests are booked than `clients` can
    have sent.
    """
    return (
        now.not_ready <= before.not_ready
        and now.tripped <= before.tripped
        and now.untrusted <= before.untrusted
        and now.has_pool == before.has_pool
        and now.policies == before.policies
        and now.silent <= before.silent
        and now.booked <= clients
    )


def sum_samples(page: str, name: str, *labels: str) -> float:
    """Return the sum of a metric's samples with all of `labels`, each in the form `status="2xx"`."""
    lines = re.findall(rf"^{re.escape(name)}(?:{{(.*)}})? (\S+)$", page, re.MULTILINE)
    return sum(float(value) for found, value in lines if all(label in found for label in labels))


def _engine_failed(now: MetricsReading, before: MetricsReading) -> bool:
    return bool(now.not_ready - before.not_ready or now.tripped - before.tripped or now.restarts > before.restarts)


def _engine_is_slow(now: MetricsReading, before: MetricsReading) -> bool:
    return bool(now.tripped - before.tripped or now.slow - before.slow)


NOTICED_BY: dict[FaultKind, Callable[[MetricsReading, MetricsReading], bool]] = {
    "kill": _engine_failed,
    "freeze": _engine_failed,
    "wedge": _engine_failed,
    "partition": _engine_failed,
    "slow": _engine_is_slow,
    "lossy_events": lambda now, before: now.gaps > before.gaps,
    "wrong_events": lambda now, before: (
        bool(now.untrusted - before.untrusted) or now.contradictions > before.contradictions
    ),
    "full_disk": lambda now, before: now.write_failures > before.write_failures,
    "dead_pool": lambda now, before: before.has_pool is True and now.has_pool is False,
    "kill_router": lambda now, before: bool(now.silent - before.silent),
    "clock_jump": lambda now, before: now.lag_s > LATE_S > before.lag_s,
}
"""Whether the metrics show a fault, compared with the reading before the fault. Faults that are not listed leave no
such sign.
"""
