"""Dry run of a policy set: recent choices, made again before a switch, to report what would change.

Each choice is made from the recorded facts, by the policy that would decide for that request now. If the new policy
set would have sent a session to another target, the session is assumed to be there from then on (`ShadowPolicy`);
otherwise a policy that keeps sessions together would seem to move each session at every request. The contents and
speed of engines stay as recorded: a dry run reports which requests would move at first, not the consequences.

Of a pair, only the choice of the answering half is made again, since the choice of prefill targets depends on it.
Retries are ignored, and nothing is learned. If the unit was not recorded (there was no experiment), the session,
key or time in the record replaces it: a request's real arm may differ, but the shares are right.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from router.config.sections.experiment import ExperimentConfig
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.experiments.regret import RegretSummary
from router.scheduling.experiments.shadow import ShadowPolicy
from router.scheduling.policy.policy import Policy, PolicyFault
from router.scheduling.policy.record import Record
from scorers.contract import Needs, View

NAMED_MOVES = 10


class TargetMove(msgspec.Struct, frozen=True):
    """Requests that would go to another target."""

    source: str
    target: str
    requests: int


class DryRunReport(msgspec.Struct, frozen=True):
    """Result of a dry run. Differences are new minus actual, per choice: negative ms are a gain."""

    records: int  # number of records tried
    choices: int  # number of choices in these records that could be made again
    changed: int
    ttft_ms: float | None  # predicted (`regret.py`); None without choices
    overlap_tokens: float | None  # of the prompt; None if unknown for all choices
    uneven_before: float | None  # the busiest target's requests over the mean of all targets
    uneven_after: float | None
    moves: tuple[TargetMove, ...]  # the most frequent moves, most frequent first
    other_moves: int  # requests that would move in other ways
    blind: int  # choices that now depend on caches, but were recorded without cache facts
    partial: int  # choices that might fall on a candidate that the record omits
    failed: int  # choices that fail: the fallback would make them
    fault: str | None  # the first failure

    def lines(self) -> list[str]:
        """Return the report as sentences, without full stops."""
        if not self.choices and not self.failed:
            return ["there are no earlier choices to try it on"]
        lines = []
        if self.choices:
            share = self.changed / self.choices
            lines.append(f"{self.changed:,} of the last {self.choices:,} choices would change ({share:.1%})")
        if self.moves:
            ways = [f"{move.source} -> {move.target} ({move.requests:,})" for move in self.moves[:3]]
            others = self.changed - sum(move.requests for move in self.moves[:3])
            lines.append(f"most often {', '.join(ways)}" + (f"; {others:,} in other ways" if others else ""))
            lines.append(self._predicted())
        if self.failed:
            lines.append(f"{self.failed:,} choices fail, the fallback would make them: {self.fault}")
        if self.blind:
            lines.append(f"{self.blind:,} were recorded without a look at caches, and were tried without")
        if self.partial:
            lines.append(
                f"{self.partial:,} were recorded with only those of a large fleet who could win then, and were tried "
                "on these: fewer may seem to change than would"
            )
        return lines

    def sentence(self) -> str:
        """Return the report as one line."""
        return "; ".join(self.lines())

    def _predicted(self) -> str:
        assert self.ttft_ms is not None
        text = f"predicted per request: {abs(self.ttft_ms):.1f} ms {_more(self.ttft_ms)} to the first token"
        if self.overlap_tokens is not None:
            text += f", {abs(self.overlap_tokens):.0f} cached prompt tokens {_more(self.overlap_tokens)}"
        return text + f"; the busiest target gets {self.uneven_after:.2f}x the mean, not {self.uneven_before:.2f}x"


class DryRun:
    """A dry run that takes records one by one, oldest first, so that the caller can pause between records: each
    costs one decision.
    """

    def __init__(self, policy_set: PolicySet) -> None:
        self._policy_set = policy_set
        self._shadow = ShadowPolicy()  # one for all arms, as in the selector
        self._regret = RegretSummary()
        self._records = self._blind = self._partial = 0
        self._fault: str | None = None

    def add(self, record: Record) -> None:
        """Make the first choice of a record again."""
        self._records += 1
        if not record.attempts:
            return
        actual = record.attempts[0].decision
        policy, view, shown_for = _prepare(self._policy_set, record, actual.view)
        try:
            other = self._shadow.decide(policy, view, actual.part, actual.target)
        except PolicyFault as fault:
            self._regret.failed += 1
            self._fault = self._fault or str(fault)
            return
        self._regret.add(actual.view, actual.row, other.row)
        had_cache = record.policy is not None and Needs.CACHE in record.policy.needs
        self._blind += not had_cache and lacks_cache_facts(policy, view)
        self._partial += policy.might_choose_omitted(view, shown_for)

    def report(self) -> DryRunReport:
        """Return the result for all records so far."""
        found = self._regret.summary()
        ways = sorted(found.moves.items(), key=lambda way: (-way[1], way[0]))
        moves = tuple(TargetMove(source, target, requests) for (source, target), requests in ways[:NAMED_MOVES])
        return DryRunReport(
            records=self._records,
            choices=found.decisions,
            changed=found.decisions - found.agreed,
            ttft_ms=found.ttft_ms,
            overlap_tokens=found.overlap_tokens,
            uneven_before=found.uneven_made,
            uneven_after=found.uneven_other,
            moves=moves,
            other_moves=sum(requests for _, requests in ways[NAMED_MOVES:]),
            blind=self._blind,
            partial=self._partial,
            failed=found.failed,
            fault=self._fault,
        )


class _Retry(NamedTuple):
    """The policy and the view for a choice that is made again."""

    policy: Policy
    view: View
    shown_for: Policy | None  # the policy for whose choice the view is complete, if any


def _prepare(policy_set: PolicySet, record: Record, view: View) -> _Retry:
    """Return the policy that would decide for this request now, and the view for it."""
    if record.asked_by is not None and record.policy is not None:  # a policy requested by name
        return _Retry(policy_set.policies.get(record.policy.name, record.policy), view, record.policy)
    experiment = policy_set.experiment
    if experiment is None:
        return _Retry(policy_set.policy, view, record.policy)
    arm, policy = policy_set.assign(record.unit or _stand_in(experiment, record, view))
    if experiment.isolate == "instances":
        own = policy_set.instances_for(arm, sorted({row.instance for row in view.rows}))
        rows = tuple(row for row in view.rows if row.instance in own)
        if len(rows) < len(view.rows):  # candidates that could win in this slice alone may be missing
            return _Retry(policy, view._replace(rows=rows or view.rows), None)
    return _Retry(policy, view, record.policy)


def _stand_in(experiment: ExperimentConfig, record: Record, view: View) -> bytes:
    """Return a unit name that is equal for the requests of one unit."""
    match experiment.unit:
        case "session":
            name = view.session
        case "program" | "user":
            name = view.program or view.session  # views of earlier versions have no program
        case "api_key":
            name = record.client
        case "time":
            name = str(record.at_wall_s // experiment.window_s)
        case "request":
            name = None
    return (name or record.id).encode()


def lacks_cache_facts(policy: Policy, view: View) -> bool:
    """Return whether the policy reads cache facts but the view has none, because no policy needed them then."""
    if Needs.CACHE not in policy.needs or view.prompt_tokens is not None or view.prefix is not None:
        return False
    return all(row.overlap is None for row in view.rows)


def _more(difference: float) -> str:
    return "more" if difference > 0 else "less"
