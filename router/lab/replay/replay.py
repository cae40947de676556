"""Replay of a decision log: takes records, decides their requests again, returns a report. No I/O, no clock.

    every choice of a record (with retries and prefill halves)  ->  its own policy decides again: same target?
    the first choice                                            ->  contenders decide: which target, gain or loss?

A choice depends only on the view and the policy's definition, so the replayed choice must equal the logged one. A
difference is a bug and is reported: in a plug-in that reads a clock or has its own random generator, in a version
that decides otherwise, or in Warmroute. Only a plug-in that learns from choices and outcomes may differ, because
the log does not hold what the plug-in had learned.

Contenders make only the first choice: a retry exists because the first choice failed, and the candidates for
prefill depend on the target that answers, so neither choice would arise for a policy that chose another target.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
from pydantic import ValidationError

from router.errors import ConfigError
from router.features.decision_log.format import LoggedChoice, LoggedPolicy, LoggedRecord
from router.lab.replay.contender import Contender, ContenderResult
from router.scheduling.experiments.other_choices import OtherChoice, decide_with
from router.scheduling.experiments.regret import YARDSTICK
from router.scheduling.policy.decision import FALLBACK, Decision, Part
from router.scheduling.policy.policy import Policy, PolicyFault, build_policy, fallback_policy
from scorers.contract import Row, View
from scorers.registry import Registry, load_registry

NO_SPEC = "it was built by hand: the log does not hold its definition"
NO_LINE = "the log has no line with its definition"
NAMED = 5  # differing choices that the report lists per policy


class DifferentChoice(msgspec.Struct, frozen=True):
    """A choice whose replay returned another target than the log holds, or failed."""

    record: str
    part: Part
    logged: str  # target
    replayed: str  # target, or the policy's failure


class ReproductionResult(msgspec.Struct, frozen=True):
    """Counts of a policy's logged choices that the replay did and did not reproduce."""

    policy: str
    digest: str
    choices: int
    same: int
    learns: bool  # the policy learns, so its choices may depend on state that the log does not hold
    first: tuple[DifferentChoice, ...]  # the first choices that differ
    unbuilt: str | None  # why the policy could not be built; None: it was built

    @property
    def whole(self) -> bool:
        """Return whether every choice was reproduced."""
        return self.same == self.choices


class Reproduction:
    """Makes a policy's choices again; none if `policy` is None: it could not be built, for the reason `unbuilt`."""

    def __init__(self, name: str, digest: str, policy: Policy | None, unbuilt: str | None = None) -> None:
        self.policy = policy
        self._name, self._digest, self.unbuilt = name, digest, unbuilt
        self._choices = self._same = 0
        self._learns = False
        self._first: list[DifferentChoice] = []

    def add(self, record: str, view: View, part: Part, logged: str) -> None:
        """Decide on `view` again; `logged` is the target that was chosen."""
        self._choices += 1
        if self.policy is None:
            return
        try:
            again = self.policy.decide(view, part)
        except PolicyFault as fault:
            replayed = str(fault)
        else:
            replayed = again.target
            self._learns = self._learns or bool(again.learners)
        if replayed == logged:
            self._same += 1
        elif len(self._first) < NAMED:
            self._first.append(DifferentChoice(record, part, logged, replayed))

    def result(self) -> ReproductionResult:
        """Return the counts so far."""
        return ReproductionResult(
            self._name, self._digest, self._choices, self._same, self._learns, tuple(self._first), self.unbuilt
        )


class InspectedChoice(NamedTuple):
    """A logged choice, made again. `decision` is the new decision with the logged target marked as chosen; None if
    the policy could not be built or failed. `trouble` gives the reason, or the other target that the policy chose.
    """

    choice: LoggedChoice
    decision: Decision | None
    policy: Policy | None
    trouble: str | None
    others: tuple[OtherChoice, ...] = ()


class ReplayReport(msgspec.Struct, frozen=True):
    records: int
    unplaced: int  # records without any choice
    first_wall_s: float | None
    last_wall_s: float | None
    reproduced: tuple[ReproductionResult, ...]  # in the order of their first choices
    contended: tuple[ContenderResult, ...]
    predicted_ms: float | None  # mean time to first token on the logged targets, for streams without a retry
    measured_ms: float | None  # measured mean of the same streams

    @property
    def choices(self) -> int:
        return sum(one.choices for one in self.reproduced)

    @property
    def same(self) -> int:
        return sum(one.same for one in self.reproduced)


class Replay:
    def __init__(self, contenders: Sequence[Policy] = (), registry: Registry | None = None) -> None:
        self._registry = registry or load_registry()
        self._contenders = [Contender(policy) for policy in contenders]
        self._live: dict[tuple[str, str], Reproduction] = {}
        self._records = self._unplaced = 0
        self._first_wall_s: float | None = None
        self._last_wall_s: float | None = None
        self._forecasts = Forecasts()

    def add_policy(self, logged: LoggedPolicy) -> None:
        """Add the definition of a policy that later records name."""
        key = (logged.name, logged.digest)
        if key not in self._live:
            self._live[key] = _rebuild(logged, self._registry)

    def add(self, logged: LoggedRecord) -> None:
        """Replay a record's choices."""
        self._records += 1
        self._first_wall_s = logged.at_wall_s if self._first_wall_s is None else self._first_wall_s
        self._last_wall_s = logged.at_wall_s
        if not logged.attempts:
            self._unplaced += 1
            return
        for choice in _choices(logged):
            self._of(logged, choice).add(logged.id, choice.view, choice.part, choice.target)
        if self._contenders:
            self._contend(logged, logged.attempts[0])

    def inspect(self, logged: LoggedRecord) -> Iterator[InspectedChoice]:
        """Yield every choice of a record, made again; contenders also make the first one."""
        for n, choice in enumerate(_choices(logged)):
            made_by = self._of(logged, choice)
            if made_by.policy is None:
                yield InspectedChoice(choice, None, None, made_by.unbuilt)
                continue
            try:
                again = made_by.policy.decide(choice.view, choice.part)
            except PolicyFault as fault:
                yield InspectedChoice(choice, None, None, str(fault))
                continue
            trouble = None if again.target == choice.target else f"decided again, it is {again.target}"
            chosen = next((i for i, row in enumerate(again.rows) if row.target == choice.target), again.chosen)
            made = again._replace(chosen=chosen)
            others = () if n else tuple(decide_with(one.policy, made, made_by.policy) for one in self._contenders)
            yield InspectedChoice(choice, made, made_by.policy, trouble, others)

    def report(self) -> ReplayReport:
        """Return the report of all records so far."""
        predicted, measured = self._forecasts.means()
        return ReplayReport(
            records=self._records,
            unplaced=self._unplaced,
            first_wall_s=self._first_wall_s,
            last_wall_s=self._last_wall_s,
            reproduced=tuple(found for one in self._live.values() if (found := one.result()).choices),
            contended=tuple(contender.result() for contender in self._contenders),
            predicted_ms=predicted,
            measured_ms=measured,
        )

    def _of(self, logged: LoggedRecord, choice: LoggedChoice) -> Reproduction:
        """Return the reproduction of the policy that made this choice."""
        is_fallback = choice.policy == FALLBACK
        key = (FALLBACK, "") if is_fallback else (logged.policy or choice.policy, logged.digest or "")
        if (found := self._live.get(key)) is None:
            found = Reproduction(*key, fallback_policy() if is_fallback else None, None if is_fallback else NO_LINE)
            self._live[key] = found
        return found

    def _contend(self, logged: LoggedRecord, choice: LoggedChoice) -> None:
        chosen = next((row for row in choice.view.rows if row.target == choice.target), None)
        if chosen is None:  # no router writes such a record; the reproduction reports it
            return
        live = self._live.get((logged.policy or "", logged.digest or ""))
        for contender in self._contenders:
            contender.add(choice.view, choice.part, chosen, None if live is None else live.policy)
        if logged.stream and logged.ttft_ms is not None and choice.end == "ok" and choice.prefill is None:
            self._forecasts.add(choice.view, chosen, logged.ttft_ms)


class Forecasts:
    """Predicted and measured times to first token of the logged choices, to judge the predictions."""

    def __init__(self) -> None:
        self._predicted_ms = self._measured_ms = 0.0
        self._count = 0

    def add(self, view: View, chosen: Row, ttft_ms: float) -> None:
        self._predicted_ms += YARDSTICK.score(view._replace(rows=(chosen,)))[0]
        self._measured_ms += ttft_ms
        self._count += 1

    def means(self) -> tuple[float | None, float | None]:
        """Return the mean predicted and the mean measured time in ms; both None without choices."""
        count = self._count
        return (self._predicted_ms / count, self._measured_ms / count) if count else (None, None)


def _choices(logged: LoggedRecord) -> Iterator[LoggedChoice]:
    """Yield each choice once. A prefill half that a second attempt reuses is logged with both attempts."""
    before = None
    for attempt in logged.attempts:
        yield attempt
        if attempt.prefill is not None and attempt.prefill != before:
            yield attempt.prefill
            before = attempt.prefill


def _rebuild(logged: LoggedPolicy, registry: Registry) -> Reproduction:
    try:
        spec = logged.policy
        if spec is None:
            return Reproduction(logged.name, logged.digest, None, NO_SPEC)
        return Reproduction(logged.name, logged.digest, build_policy(logged.name, spec, registry))
    except ValidationError as newer:
        return Reproduction(logged.name, logged.digest, None, f"this version cannot read its definition: {newer}")
    except ConfigError as refusal:
        return Reproduction(logged.name, logged.digest, None, str(refusal))
