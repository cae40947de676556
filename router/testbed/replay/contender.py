"""A policy that did not decide in the log, held against those that did: the same views, its own choices and its own
session memory. It learns nothing: nobody knows what outcomes its choices would have had.
"""

from __future__ import annotations

import msgspec

from router.scheduling.experiments.dry_run import TargetMove, lacks_cache_facts
from router.scheduling.experiments.regret import RegretSummary
from router.scheduling.experiments.shadow import ShadowPolicy
from router.scheduling.policy.decision import Part
from router.scheduling.policy.policy import Policy, PolicyFault
from router.testbed.replay.quantile_sketch import QuantileSketch
from scorers.contract import Row, View

SESSIONS = 100_000  # as many as the desk remembers
NAMED_MOVES = 10


class ContenderResult(msgspec.Struct, frozen=True):
    """Differences are its choices minus those that were made: negative ms are a gain. None: there is no such choice."""

    policy: str
    digest: str
    choices: int
    agreed: int
    ttft_ms: float | None  # predicted (`compare.py`), mean over all choices
    ttft_p10_ms: float | None  # where it would have chosen otherwise
    ttft_p90_ms: float | None
    overlap_tokens: float | None  # of the prompt, mean over the choices where it is known of both targets
    uneven_made: float | None  # the busiest target's requests over the mean of all targets
    uneven: float | None
    moves: tuple[TargetMove, ...]  # most frequent first
    blind: int  # choices without the knowledge of caches that it counts on: nobody had looked
    partial: int  # choices where it might have taken a candidate that the log leaves out
    failed: int
    fault: str | None  # the first one

    @property
    def agreement(self) -> float | None:
        return self.agreed / self.choices if self.choices else None


class Contender:
    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._follower = ShadowPolicy(SESSIONS)
        self._differences = RegretSummary()
        self._where_other = QuantileSketch()
        self._blind = self._partial = 0
        self._fault: str | None = None

    def add(self, view: View, part: Part, made: Row, shown_for: Policy | None = None) -> None:
        """`shown_for`: who decided then, and so saw all that mattered; None: nobody knows."""
        try:
            own = self._follower.decide(self.policy, view, part, made.target)
        except PolicyFault as fault:
            self._differences.failed += 1
            self._fault = self._fault or str(fault)
            return
        self._blind += lacks_cache_facts(self.policy, view)
        self._partial += self.policy.might_choose_omitted(view, shown_for)
        difference = self._differences.add(view, made, own.row)
        if own.target != made.target:
            self._where_other.add(difference.ttft_ms)

    def contended(self) -> ContenderResult:
        found = self._differences.summary()
        ways = sorted(found.moves.items(), key=lambda way: (-way[1], way[0]))[:NAMED_MOVES]
        return ContenderResult(
            policy=self.policy.name,
            digest=self.policy.digest,
            choices=found.decisions,
            agreed=found.agreed,
            ttft_ms=found.ttft_ms,
            ttft_p10_ms=self._where_other.at(0.1),
            ttft_p90_ms=self._where_other.at(0.9),
            overlap_tokens=found.overlap_tokens,
            uneven_made=found.uneven_made,
            uneven=found.uneven_other,
            moves=tuple(TargetMove(source, target, requests) for (source, target), requests in ways),
            blind=self._blind,
            partial=self._partial,
            failed=found.failed,
            fault=self._fault,
        )
