"""A running experiment: the units on each arm, their outcomes, and the conclusions.

    begin_request, end_request    per request, at the choice and after its end: a few microseconds
    poll                          about once a second: closes finished units, bets on each, checks limits
    report                        for people

A unit counts with its requests of the first `observe_s` seconds (a unit of kind `time`: of its whole window), and
only once: a unit that returns later would fall on the same arm, which is no new evidence. Units are processed in
order of arrival, so that everything that a bet depends on was known before the arm of its unit was drawn. The first
unit is finished when its time is over and each of its requests has ended or is hopelessly late (`LATE` times the
first arm's P90), so a hanging request does not delay the other units for long.

If several processes run in front of the same engines, each process counts its own units
(`control/peers/partitioned_experiment.py`); `set_others` adds the units of the others to every figure, including
the guard's.

The arms are policies, or the models of an alias (`model_split.py`); for models, the lengths of answers are compared
as well.

Memory is bounded: by `enrolment.py` for units, by the number of requests in flight, and by 60 KB per arm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import inf

from router.config.sections.experiment import ExperimentConfig, Metric
from router.config.sections.models import SplitArmConfig
from router.scheduling.experiments.arm_metrics import QUANTILES, ArmMetrics
from router.scheduling.experiments.comparison import METRICS, MODEL_METRICS, ArmComparison, Values, compute_bars
from router.scheduling.experiments.counts import ArmCounts, ExperimentCounts
from router.scheduling.experiments.e_process import BETS
from router.scheduling.experiments.enrolment import OPEN_UNITS, Enrolment
from router.scheduling.experiments.limits import ArmLimit, LimitedRequest, judge_failure, judge_ttft
from router.scheduling.experiments.results import ArmReport, ExperimentReport, Finding, MetricResult, ReportedMetric
from router.scheduling.experiments.unit import ExperimentUnit, has_failed, mean_relative_length, slow_share
from router.scheduling.policy.record import Record

CLOSES_AT_ONCE = 200  # units per poll: about 10 ms
FIRST_UNITS = 10  # number of units of the first arm before its quantiles are used
REFRESH = 1.05  # the first arm's quantiles are updated when its number of units has grown by this factor
LATE = 10.0
LATEST_S = 3600.0
SLOW_SHARE = 0.1  # share of requests that may be slower than a limit on the P90


class ArmState:
    """State of one arm. `comparison` is None for the first arm, which the others are compared with."""

    def __init__(self, name: str, share: float, comparison: ArmComparison | None, limits: dict[str, ArmLimit]) -> None:
        self.name = name
        self.share = share
        self.comparison = comparison
        self.limits = limits  # by their keys in the configuration
        self.metrics = ArmMetrics()
        self.reported = False
        self.exclusion: str | None = None
        self.others: Sequence[ArmCounts] = ()  # of other routers

    @property
    def all_metrics(self) -> ArmMetrics:
        """The arm's metrics over all routers."""
        return self.metrics.plus([each.metrics for each in self.others])

    def counts(self, open_units: int) -> ArmCounts:
        """Return the counts of this router."""
        comparison = None if self.comparison is None else self.comparison.counts()
        limits = {key: limit.counts() for key, limit in self.limits.items()}
        return ArmCounts(open_units, self.metrics.counts(), comparison, limits)

    def set_others(self, others: Sequence[ArmCounts], running: Sequence[ArmCounts]) -> None:
        """Set the counts of other routers; `running` has the counts of those that are not gone."""
        self.others = others
        if self.comparison is not None:
            self.comparison.set_others([each.comparison for each in others if each.comparison is not None])
        for key, limit in self.limits.items():
            limit.set_others([each.limits[key] for each in running if key in each.limits])


class RunningExperiment:
    """The experiment `spec` with the state of its arms. Shares are fixed: other shares make another experiment.
    `models` has the models of the arms by the arms' names; None if the arms are policies.
    """

    def __init__(self, spec: ExperimentConfig, models: Mapping[str, SplitArmConfig] | None = None) -> None:
        self._spec = spec
        self._models = models
        self._metrics = METRICS if models is None else MODEL_METRICS
        self._bars = compute_bars(spec.guard.alpha, len(spec.arms), len(self._metrics))
        first_share = next(iter(spec.shares.values()))
        self._arms = [
            ArmState(
                name,
                share,
                ArmComparison(share / (share + first_share), spec.guard, self._bars, self._metrics) if i else None,
                _limits(spec),
            )
            for i, (name, share) in enumerate(spec.shares.items())
        ]
        self._numbers = {arm.name: i for i, arm in enumerate(self._arms)}
        self._running: dict[int, LimitedRequest] = {}  # by record number
        self._enrolment = Enrolment(_observed_s(spec), returns=spec.unit != "request")
        self._quantiles: dict[ReportedMetric, float] = {}  # of the first arm, ms or tokens
        self._refresh_at = float(FIRST_UNITS)

    @property
    def is_over(self) -> bool:
        """Whether the first arm is excluded, so that there is nothing left to compare with."""
        return self._arms[0].exclusion is not None

    @property
    def units(self) -> dict[str, int]:
        """Number of closed units by arm, without the units of other routers."""
        return {arm.name: arm.metrics.units for arm in self._arms}

    @property
    def open_units(self) -> int:
        """Number of open units. If it is much higher than the number of units that arrive in `observe_s`, `poll` is
        called too seldom.
        """
        return len(self._enrolment)

    def begin_request(self, arm: str, unit: bytes, record: Record) -> None:
        """Add a request that `arm` places because its unit (a short digest) was *drawn* for that arm. Do not call
        this for requests that are on an arm for another reason than the draw (an override, a rollback). Raises
        ValueError if `arm` is not in this experiment.
        """
        number = self._numbers.get(arm)
        if number is None:
            raise ValueError(f"no arm `{arm}` in this experiment; its arms: {', '.join(self._numbers)}")
        state = self._arms[number]
        if state.exclusion is not None or self.is_over or record.number in self._running:
            return
        limited = LimitedRequest(number, self._enrolment.enrol(number, unit, record), record)
        self._running[record.number] = limited
        if limited.unit is not None:
            limited.unit.running[record.number] = record
        for limit in state.limits.values():
            limit.add(limited)

    def first_byte(self, record: Record) -> None:
        """Do nothing when the answer to a request begins: this class reads the time from the record."""

    def end_request(self, record: Record) -> None:
        """Add the outcome of a request whose record is closed; ignored unless `begin_request` added it."""
        limited = self._running.pop(record.number, None)
        if limited is None:
            return
        limited.record, limited.ended = record, True  # a split may pass another record with this number
        state = self._arms[limited.arm]
        state.metrics.add_request(record)
        if limited.unit is not None and record.number in limited.unit.running:
            limited.unit.end_request(record)
        if limited.counted_good and has_failed(record):
            state.limits["error_rate_max"].add_late_failure()

    def exclude_arm(self, arm: str, why: str) -> None:
        """Exclude an arm that the operator has rolled back, so that its units do not count any more."""
        state = self._arms[self._numbers[arm]]
        state.exclusion = state.exclusion or why

    def poll(self, now_s: float) -> list[Finding]:
        """Close up to `CLOSES_AT_ONCE` finished units and return the findings on arms that are too bad. `now_s` is
        monotonic.
        """
        findings: list[Finding] = []
        for _ in range(CLOSES_AT_ONCE):
            unit = self._enrolment.first
            if unit is None or not self._is_finished(unit, now_s):
                break
            self._close(unit, findings)
        for arm in self._arms:
            if arm.exclusion is None and not self.is_over:
                self._check_guard(arm, findings)  # units of other routers may have tripped it
                self._check_limits(arm, now_s, findings)
        return findings

    def counts(self) -> ExperimentCounts:
        """Return the counts of this router, for other routers."""
        opened = self._enrolment.open
        return ExperimentCounts([arm.counts(opened[number]) for number, arm in enumerate(self._arms)])

    def set_others(self, others: Sequence[ExperimentCounts], running: Sequence[ExperimentCounts]) -> None:
        """Set the counts of other routers, of units of this experiment that are not counted here; `running` has the
        counts of the routers that are not gone.
        """
        for number, arm in enumerate(self._arms):
            arm.set_others([each.arms[number] for each in others], [each.arms[number] for each in running])

    def fits(self, counts: ExperimentCounts) -> bool:
        """Return whether `counts` can be added: counts of another version may have other metrics or bets."""
        compared = [arm.comparison for arm in counts.arms]
        return [arm is None for arm in compared] == [arm.comparison is None for arm in self._arms] and all(
            len(arm.metrics) == len(self._metrics)
            and all(len(each.won) == len(BETS) for pair in (*arm.metrics, (arm.guard,)) for each in pair)
            for arm in compared
            if arm is not None
        )

    def report(self) -> ExperimentReport:
        """Return the present results."""
        metrics = [arm.all_metrics for arm in self._arms]
        targets = set[str]().union(*(each.targets for each in metrics))
        requests = sum(arm.metrics.requests for arm in self._arms)
        per_unit = requests / max(1, self._enrolment.enrolled)
        return ExperimentReport(
            alpha=self._spec.guard.alpha,
            bar=self._bars.verdict,
            guard_bar=self._bars.guard,
            arms=tuple(
                self._report_arm(arm, each, len(targets), per_unit)
                for arm, each in zip(self._arms, metrics, strict=True)
            ),
            warnings=tuple(self._warnings()),
        )

    def _is_finished(self, unit: ExperimentUnit, now_s: float) -> bool:
        if self._arms[unit.arm].exclusion is not None:
            return True
        if not self._enrolment.has_elapsed(unit, now_s):
            return False
        return unit.is_hanging(now_s, self._late_s("ttft_p90"), self._late_s("duration_p90"))

    def _late_s(self, metric: Metric) -> float:
        """Return the age in seconds from which a request counts as hanging."""
        return min(LATE * self._quantiles[metric] / 1e3, LATEST_S) if self._quantiles else LATEST_S

    def _close(self, unit: ExperimentUnit, findings: list[Finding]) -> None:
        """Close the first unit: bet on it, then add it to the arm's metrics."""
        self._enrolment.leave()
        arm = self._arms[unit.arm]
        unit.close()
        if arm.exclusion is not None or self.is_over:
            return
        values = self._values(unit)
        guarded = self._guarded_value(unit, values)
        for other in [arm] if arm.comparison is not None else self._arms[1:]:
            if other.comparison is not None and other.exclusion is None:
                other.comparison.observe(other is arm, values, guarded)
        arm.metrics.add_unit(unit)
        self._refresh()
        self._check_guard(arm, findings)

    def _values(self, unit: ExperimentUnit) -> Values:
        return tuple(self._value(metric, unit) for metric in self._metrics)

    def _value(self, metric: ReportedMetric, unit: ExperimentUnit, stretch: float = 1.0) -> float | None:
        """Return a unit's value (see `Values`); the first arm's quantile is multiplied by `stretch`."""
        if metric == "hit_share":
            return unit.hit_share
        if metric == "error_rate":
            return unit.error_rate
        if (quantile := self._quantiles.get(metric)) is None:
            return None
        if metric == "output_p50":
            return mean_relative_length(unit.output_tokens, quantile)
        waits_ms = unit.last_bytes if metric == "duration_p90" else unit.first_bytes
        return slow_share(waits_ms, stretch * quantile)

    def _guarded_value(self, unit: ExperimentUnit, values: Values) -> float | None:
        metric = self._spec.guard.metric
        if unit.arm and metric in QUANTILES:
            return self._value(metric, unit, 1 + self._spec.guard.worse_by)
        return values[METRICS.index(metric)]

    def _refresh(self) -> None:
        """Update the first arm's quantiles; only between units, so that no unit is compared with itself."""
        first = self._arms[0].metrics
        if first.first_bytes.units < self._refresh_at:
            return
        self._refresh_at = first.first_bytes.units * REFRESH
        for metric in QUANTILES:
            quantile = first.quantile(metric)
            if quantile is not None:
                self._quantiles[metric] = quantile

    def _check_guard(self, arm: ArmState, findings: list[Finding]) -> None:
        if arm.comparison is not None and arm.comparison.guard_tripped and not arm.reported:
            findings.append(self._trip_guard(arm, arm.comparison))

    def _trip_guard(self, arm: ArmState, comparison: ArmComparison) -> Finding:
        guard = self._spec.guard
        of_arm, of_first = (each.all_metrics.estimate(guard.metric, 0.5).value for each in (arm, self._arms[0]))
        why = (
            f"{guard.metric}: {_figure(guard.metric, of_arm)} against {_figure(guard.metric, of_first)} of "
            f"{self._arms[0].name}: worse by more than {guard.worse_by:.0%}, after {comparison.units} units"
        )
        arm.reported = True
        if guard.action == "rollback":
            arm.exclusion = why
        return Finding(
            arm.name, "guard", guard.metric, why, comparison.units, comparison.guard_evidence.value, of_arm, of_first
        )

    def _check_limits(self, arm: ArmState, now_s: float, findings: list[Finding]) -> None:
        for key, limit in arm.limits.items():
            if limit.poll(now_s) and arm.exclusion is None:
                most = (
                    self._spec.limits.ttft_p90_max_ms if key == "ttft_p90_max_ms" else self._spec.limits.error_rate_max
                )
                total = limit.total
                arm.exclusion = f"{key}: {total.bad} of {total.requests} requests are beyond it ({most:g})"
                share, units = total.bad / total.requests, arm.all_metrics.units
                findings.append(Finding(arm.name, "limit", key, arm.exclusion, units, total.evidence, share, None))

    def _report_arm(self, arm: ArmState, metrics: ArmMetrics, targets: int, per_unit: float) -> ArmReport:
        config = self._spec.arms[arm.name]
        model = None if self._models is None else self._models[arm.name]
        return ArmReport(
            arm=arm.name,
            policy=config.policy or arm.name,
            admission=None if config.admission is None else config.admission.name,
            share=arm.share,
            out=arm.exclusion,
            units_open=self._enrolment.open[self._numbers[arm.name]] + sum(each.open_units for each in arm.others),
            units_closed=metrics.units,
            requests=metrics.requests,
            failed=metrics.failed,
            spread=metrics.imbalance(targets) if model is None else None,  # each model has targets of its own
            guard_evidence=arm.comparison.guard_evidence.peak if arm.comparison is not None else None,
            standings=tuple(self._judge(arm, metrics, metric, per_unit) for metric in self._metrics),
            model=None if model is None else model.model,
            revision=None if model is None else model.revision,
        )

    def _judge(self, arm: ArmState, metrics: ArmMetrics, metric: ReportedMetric, per_unit: float) -> MetricResult:
        estimate = metrics.estimate(metric, self._spec.guard.alpha / (len(self._arms) * len(self._metrics)))
        if arm.comparison is None:
            return MetricResult(metric, *estimate, None, None, None, None)
        comparison = arm.comparison.metrics[self._metrics.index(metric)]
        units = comparison.units_needed(self._bars.verdict) if comparison.verdict == "not yet known" else 0
        requests = None if units is None else round(units * per_unit)
        return MetricResult(metric, *estimate, comparison.verdict, comparison.peak, units, requests)

    def _warnings(self) -> Iterator[str]:
        if self._models is None and self._spec.isolate == "none" and len(self._arms) > 1:
            yield "the arms share caches and queues, so each shows what the others do as well; isolate: instances helps"
        for arm in self._arms[1:]:
            if arm.comparison is not None and arm.comparison.is_lopsided:
                yield f"{arm.name} gets another share of the units than it should: the comparison is not to be trusted"
        if self._enrolment.rejected:
            yield f"{self._enrolment.rejected} units do not count: {OPEN_UNITS} were open already"
        if self._enrolment.forgotten:
            yield f"{self._enrolment.forgotten} closed units are forgotten: if they come back, they count twice"


def _observed_s(spec: ExperimentConfig) -> float:
    """Return how long a unit's requests count, in seconds: for a window of time, its length; for a request, which
    is its whole unit, 0.
    """
    if spec.unit == "time":
        return spec.window_s
    return 0.0 if spec.unit == "request" else spec.observe_s


def _limits(spec: ExperimentConfig) -> dict[str, ArmLimit]:
    limits = {}
    if (most_ms := spec.limits.ttft_p90_max_ms) is not None:
        limits["ttft_p90_max_ms"] = ArmLimit(SLOW_SHARE, partial(judge_ttft, most_ms=most_ms))
    if (most := spec.limits.error_rate_max) is not None:
        limits["error_rate_max"] = ArmLimit(most, judge_failure)
    return limits


def _figure(metric: Metric, value: float | None) -> str:
    if value is None:
        return "unknown"
    if metric in QUANTILES:
        return "no answer" if value == inf else f"{value:.0f} ms"
    return f"{value:.1%}"
