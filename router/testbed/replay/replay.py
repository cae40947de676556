"""A decision log's decisions, made again: records in, a report out. Pure: it opens nothing and knows no time.

    every choice of a record (retries and prefill halves too)  ->  the policy that made it: the same target?
    the first choice                                           ->  every contender: which target, and what that is worth

Contenders get only the first one: a retry is there because somebody's first choice failed, and who may prefill hangs on
who answers, so neither would have come up for somebody who chose otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from pydantic import ValidationError

from router.errors import ConfigError
from router.scheduling.experiments.regret import YARDSTICK
from router.scheduling.policy.decision import FALLBACK
from router.scheduling.policy.policy import Policy, build_policy, fallback_policy
from router.telemetry.decision_log.format import LoggedChoice, LoggedPolicy, LoggedRecord
from router.testbed.replay.contender import Contender, ContenderResult
from router.testbed.replay.reproduction import Reproduction, ReproductionResult
from scorers.contract import Row, View
from scorers.registry import Registry, load_registry

NO_SPEC = "it was built by hand: the log says nothing of what it is"
NO_LINE = "the log has no line that says what it is"


class ReplayReport(msgspec.Struct, frozen=True):
    records: int
    unplaced: int  # of those, without a choice
    first_wall_s: float | None
    last_wall_s: float | None
    reproduced: tuple[ReproductionResult, ...]  # in the order in which they came up
    contended: tuple[ContenderResult, ...]
    predicted_ms: float | None  # mean time to first token of what was chosen, over streams answered at the first try
    measured_ms: float | None  # the same, as it was

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

    def met(self, known: LoggedPolicy) -> None:
        """A policy that records which follow name."""
        key = (known.name, known.digest)
        if key not in self._live:
            self._live[key] = _rebuilt(known, self._registry)

    def add(self, logged: LoggedRecord) -> None:
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

    def report(self) -> ReplayReport:
        """Of all that was added so far."""
        predicted, measured = self._forecasts.means()
        return ReplayReport(
            records=self._records,
            unplaced=self._unplaced,
            first_wall_s=self._first_wall_s,
            last_wall_s=self._last_wall_s,
            reproduced=tuple(found for one in self._live.values() if (found := one.reproduced()).choices),
            contended=tuple(contender.contended() for contender in self._contenders),
            predicted_ms=predicted,
            measured_ms=measured,
        )

    def _of(self, logged: LoggedRecord, choice: LoggedChoice) -> Reproduction:
        """Who made this choice."""
        stood_in = choice.policy == FALLBACK
        key = (FALLBACK, "") if stood_in else (logged.policy or choice.policy, logged.digest or "")
        if (found := self._live.get(key)) is None:
            found = Reproduction(*key, fallback_policy() if stood_in else None, None if stood_in else NO_LINE)
            self._live[key] = found
        return found

    def _contend(self, logged: LoggedRecord, choice: LoggedChoice) -> None:
        made = next((row for row in choice.view.rows if row.target == choice.target), None)
        if made is None:  # no router writes that; the reproduction names it
            return
        live = self._live.get((logged.policy or "", logged.digest or ""))
        for contender in self._contenders:
            contender.add(choice.view, choice.part, made, None if live is None else live.policy)
        if logged.stream and logged.ttft_ms is not None and choice.end == "ok" and choice.prefill is None:
            self._forecasts.add(choice.view, made, logged.ttft_ms)


class Forecasts:
    """How far predictions are to be believed: what was predicted of the choices made, and what came."""

    def __init__(self) -> None:
        self._predicted_ms = self._measured_ms = 0.0
        self._many = 0

    def add(self, view: View, made: Row, ttft_ms: float) -> None:
        self._predicted_ms += YARDSTICK.score(view._replace(rows=(made,)))[0]
        self._measured_ms += ttft_ms
        self._many += 1

    def means(self) -> tuple[float | None, float | None]:
        many = self._many
        return (self._predicted_ms / many, self._measured_ms / many) if many else (None, None)


def _choices(logged: LoggedRecord) -> Iterator[LoggedChoice]:
    """Each once: a prefill half whose KV a second try could still fetch stands with both tries."""
    before = None
    for attempt in logged.attempts:
        yield attempt
        if attempt.prefill is not None and attempt.prefill != before:
            yield attempt.prefill
            before = attempt.prefill


def _rebuilt(known: LoggedPolicy, registry: Registry) -> Reproduction:
    try:
        spec = known.policy
        if spec is None:
            return Reproduction(known.name, known.digest, None, NO_SPEC)
        return Reproduction(known.name, known.digest, build_policy(known.name, spec, registry))
    except ValidationError as newer:
        return Reproduction(known.name, known.digest, None, f"this version does not understand its spec: {newer}")
    except ConfigError as refusal:
        return Reproduction(known.name, known.digest, None, str(refusal))
