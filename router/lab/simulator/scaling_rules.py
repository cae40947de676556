"""Rules for the size of a fleet: the router's own, and those that Kubernetes' autoscaler follows by engine metrics.

All pass through `HorizontalPodAutoscaler`, so that only the signals differ, not what acts on them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import ceil

from router.features.autoscaling.scaling import VALUE_WINDOW_S, find_least_valuable, find_own_tokens, read_role
from router.fleet.desired_instances import DesiredInstances
from router.fleet.engine_facts import Gauges
from router.fleet.fleet import Fleet
from router.fleet.instance import Instance, InstanceState
from router.lab.simulator.router import MODEL
from router.scheduling.policy.record import Record
from router.scheduling.scheduler import Scheduler

TOLERANCE = 0.1  # HPA: --horizontal-pod-autoscaler-tolerance
DOWN_S = 300.0  # HPA: behavior.scaleDown.stabilizationWindowSeconds


class HorizontalPodAutoscaler:
    """The formula of Kubernetes' HPA: with tolerance, and down to the largest count of the last `down_s` only.

    Source: kubernetes pkg/controller/podautoscaler, replica_calculator.go and horizontal.go.
    """

    def __init__(self, down_s: float) -> None:
        self._down_s = down_s
        self._wanted: deque[tuple[float, int]] = deque()

    def by_value(self, total: float, target: float, current: int, now: float) -> int:
        """Return the count for an external metric with an AverageValue: `target` of `total` for each instance."""
        near = abs(total / (target * current) - 1.0) <= TOLERANCE
        return self._stabilise(current if near else ceil(total / target - 1e-9), current, now)

    def by_utilization(self, shares: Sequence[float], target: float, current: int, now: float) -> int:
        """Return the count for a metric of pods: the share of each ready one. The others of `current` count as idle
        where the count would grow and as loaded with `target` where it would shrink, so that neither goes too far.
        """
        if not shares:
            return self._stabilise(current, current, now)
        total, others = sum(shares), current - len(shares)
        grows = total / len(shares) > target
        ratio = (total if grows else total + others * target) / (current * target)
        if abs(ratio - 1.0) <= TOLERANCE or (ratio > 1.0) != grows:
            return self._stabilise(current, current, now)
        return self._stabilise(ceil(ratio * current - 1e-9), current, now)

    def _stabilise(self, wanted: int, current: int, now: float) -> int:
        """Return `wanted`, or the largest count of the window, up to `current`, if that is larger."""
        while self._wanted and self._wanted[0][0] < now - self._down_s:
            self._wanted.popleft()
        self._wanted.append((now, wanted))
        return max(wanted, min(current, max(count for _, count in self._wanted)))


class NewestLeaves:
    """A Deployment: of equal pods, the one that became ready last is removed."""

    def choose_leaving(self, ready: Sequence[Instance], now: float) -> Instance:
        return ready[-1]

    def observe(self, scheduler: Scheduler, now: float) -> None:
        """Do nothing: engine metrics are read when the count is queried."""

    def on_record(self, record: Record) -> None:
        """Do nothing: records are not read."""


class QueueLength(NewestLeaves):
    """Waiting requests of all engines, `target` for each. The vLLM production stack's tutorial of KEDA has 5."""

    def __init__(self, target: float) -> None:
        self._target = target
        self._hpa = HorizontalPodAutoscaler(DOWN_S)

    def find_desired(self, fleet: Fleet, current: int, now: float) -> int:
        waiting = sum(_read_gauges(fleet, lambda gauges: gauges.waiting))
        return self._hpa.by_value(waiting, self._target, current, now)


class CacheUsage(NewestLeaves):
    """The share of KV memory that requests use, `target` on average. AIBrix' sample of an HPA has 0.5."""

    def __init__(self, target: float) -> None:
        self._target = target
        self._hpa = HorizontalPodAutoscaler(DOWN_S)

    def find_desired(self, fleet: Fleet, current: int, now: float) -> int:
        usage = _read_gauges(fleet, lambda gauges: gauges.kv_usage)
        return self._hpa.by_utilization(usage, self._target, current, now)


class RouterSignal:
    """The router's signal (`warmroute_desired_instances`, `scale_in`), as an external metric with an AverageValue of
    1. It holds the count itself, so HPA's own window is 0.
    """

    def __init__(self) -> None:
        self._desired = DesiredInstances()
        self._wanted: int | None = None
        self._hpa = HorizontalPodAutoscaler(0.0)
        self._values: deque[tuple[float, str, int]] = deque()  # when, the instance, tokens that it alone had
        self.reasons: dict[str, int] = {}  # how often each reason gave the largest count, for reports

    def observe(self, scheduler: Scheduler, now: float) -> None:
        """Read the fleet as the live router does."""
        reused_tokens = scheduler.working_sets.count_tokens(MODEL, "both", now)
        wanted = self._desired.observe(read_role(scheduler.fleet, reused_tokens, now), now)
        if wanted is not None:
            self._wanted = wanted.instances
            self.reasons[wanted.reason] = self.reasons.get(wanted.reason, 0) + 1

    def on_record(self, record: Record) -> None:
        if (found := find_own_tokens(record)) is not None:
            self._values.append((record.at_wall_s, *found))

    def find_desired(self, fleet: Fleet, current: int, now: float) -> int:
        return current if self._wanted is None else self._hpa.by_value(self._wanted, 1.0, current, now)

    def choose_leaving(self, ready: Sequence[Instance], now: float) -> Instance:
        while self._values and self._values[0][0] < now - VALUE_WINDOW_S:
            self._values.popleft()
        value: dict[str, int] = {}
        for _, instance, tokens in self._values:
            value[instance] = value.get(instance, 0) + tokens
        least = find_least_valuable(ready, value)
        return ready[-1] if least is None else next(one for one in ready if one.id == least.instance)


def _read_gauges(fleet: Fleet, of: Callable[[Gauges], float | None]) -> list[float]:
    """Return a gauge of each ready instance that has reported it."""
    ready = (one for one in fleet if one.state is InstanceState.READY)
    values = (of(target.load_book.gauges) for one in ready for target in one.targets.values())
    return [value for value in values if value is not None]
