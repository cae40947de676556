"""What would change, were another regime in force: choices of earlier requests, made again before anybody switches.

Each is made from the facts of then, by whoever would decide for that request now. A session that the new regime would
have sent elsewhere is taken to be there from then on (`shadow.Follower`), or a policy that keeps sessions together
would be said to move each one at every request. What engines held and did stays as it was: a plan says where requests
would begin to go, not what that would lead to.

Of a pair only the answering half is looked at: who may prefill hangs on it. Retries are not, nor is anything learned.
A unit that nobody asked for then (there was no experiment) is stood in for by what the record does tell of session, key
or time: its arm may be another one in the end, the shares are right.
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
    """Requests that would go to another target than they went."""

    source: str
    target: str
    requests: int


class DryRunReport(msgspec.Struct, frozen=True):
    """Differences are what the new regime would have had minus what was, per choice: negative ms are a gain."""

    records: int  # looked at
    choices: int  # of those, such as had a choice and could be made again
    changed: int
    ttft_ms: float | None  # predicted (`compare.py`); None: no choice
    overlap_tokens: float | None  # of the prompt; None: known of no choice
    uneven_before: float | None  # the busiest target's requests over the mean of all targets
    uneven_after: float | None
    moves: tuple[TargetMove, ...]  # the most frequent ones, most frequent first
    other_moves: int  # requests that would move in other ways
    blind: int  # choices for which caches count now, recorded when they did not and nobody looked
    partial: int  # choices where somebody might be taken whom the record of a large fleet leaves out
    failed: int  # choices that the new regime breaks on: the fallback would make them
    fault: str | None  # the first of those

    def lines(self) -> list[str]:
        """For people; without a full stop at the end."""
        if not self.choices and not self.failed:
            return ["there are no earlier choices to try it on"]
        said = []
        if self.choices:
            share = self.changed / self.choices
            said.append(f"{self.changed:,} of the last {self.choices:,} choices would change ({share:.1%})")
        if self.moves:
            ways = [f"{move.source} -> {move.target} ({move.requests:,})" for move in self.moves[:3]]
            others = self.changed - sum(move.requests for move in self.moves[:3])
            said.append(f"most often {', '.join(ways)}" + (f"; {others:,} in other ways" if others else ""))
            said.append(self._predicted())
        if self.failed:
            said.append(f"{self.failed:,} choices fail, the fallback would make them: {self.fault}")
        if self.blind:
            said.append(f"{self.blind:,} were recorded without a look at caches, and were tried without")
        if self.partial:
            said.append(
                f"{self.partial:,} were recorded with only those of a large fleet who could win then, and were tried "
                "on these: fewer may seem to change than would"
            )
        return said

    def sentence(self) -> str:
        return "; ".join(self.lines())

    def _predicted(self) -> str:
        assert self.ttft_ms is not None
        told = f"predicted per request: {abs(self.ttft_ms):.1f} ms {_more(self.ttft_ms)} to the first token"
        if self.overlap_tokens is not None:
            told += f", {abs(self.overlap_tokens):.0f} cached prompt tokens {_more(self.overlap_tokens)}"
        return told + f"; the busiest target gets {self.uneven_after:.2f}x the mean, not {self.uneven_before:.2f}x"


class DryRun:
    """Takes records one by one, oldest first, so that the caller can pause between them: each costs one decision."""

    def __init__(self, regime: PolicySet) -> None:
        self._regime = regime
        self._follower = ShadowPolicy()  # one for all arms, as the desk has it
        self._differences = RegretSummary()
        self._records = self._blind = self._partial = 0
        self._fault: str | None = None

    def add(self, record: Record) -> None:
        self._records += 1
        if not record.attempts:
            return
        made = record.attempts[0].decision
        policy, view, shown_for = _asked_now(self._regime, record, made.view)
        try:
            other = self._follower.decide(policy, view, made.part, made.target)
        except PolicyFault as fault:
            self._differences.failed += 1
            self._fault = self._fault or str(fault)
            return
        self._differences.add(made.view, made.row, other.row)
        looked = record.policy is not None and Needs.CACHE in record.policy.needs
        self._blind += not looked and lacks_cache_facts(policy, view)
        self._partial += policy.might_choose_omitted(view, shown_for)

    def report(self) -> DryRunReport:
        """Of all that was added so far."""
        found = self._differences.summary()
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


class _Asked(NamedTuple):
    policy: Policy
    view: View
    shown_for: Policy | None  # whose choice the view is whole for; None: nobody's


def _asked_now(regime: PolicySet, record: Record, view: View) -> _Asked:
    """Who would decide for this request, on which rows."""
    if record.asked_by is not None and record.policy is not None:  # by name, whatever is in force
        return _Asked(regime.policies.get(record.policy.name, record.policy), view, record.policy)
    experiment = regime.experiment
    if experiment is None:
        return _Asked(regime.policy, view, record.policy)
    arm, policy = regime.assign(record.unit or _stand_in(experiment, record, view))
    if experiment.isolate == "instances":
        own = regime.instances_for(arm, sorted({row.instance for row in view.rows}))
        rows = tuple(row for row in view.rows if row.instance in own)
        if len(rows) < len(view.rows):  # who could win in this slice alone, may have been left out
            return _Asked(policy, view._replace(rows=rows or view.rows), None)
    return _Asked(policy, view, record.policy)


def _stand_in(experiment: ExperimentConfig, record: Record, view: View) -> bytes:
    """Something that is equal for the requests of one unit."""
    match experiment.unit:
        case "session" | "user":
            name = view.session
        case "api_key":
            name = record.client
        case "time":
            name = str(record.at_wall_s // experiment.window_s)
        case "request":
            name = None
    return (name or record.id).encode()


def lacks_cache_facts(policy: Policy, view: View) -> bool:
    """Whether this policy counts on caches and the view knows nothing of any, as where nobody needed it."""
    if Needs.CACHE not in policy.needs or view.prompt_tokens is not None or view.prefix is not None:
        return False
    return all(row.overlap is None for row in view.rows)


def _more(difference: float) -> str:
    return "more" if difference > 0 else "less"
