"""Contenders: policies that did not decide in the log, compared on the same views with the policies that did.

A contender makes its own choices and has its own session memory. It does not learn, because the outcomes of its
choices are unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import ceil, log
from pathlib import Path

import msgspec

from router.config.lookup import SHIPPED, load_each
from router.config.reader import read_policy_file
from router.scheduling.experiments.dry_run import TargetMove, lacks_cache_facts
from router.scheduling.experiments.regret import RegretSummary
from router.scheduling.experiments.shadow import ShadowPolicy
from router.scheduling.policy.decision import Part
from router.scheduling.policy.policy import Policy, PolicyFault, build_policy
from scorers.contract import Row, View
from scorers.registry import Registry

SESSIONS = 100_000  # as many as the live selector retains
NAMED_MOVES = 10
FLOOR = 1e-3
RATIO = 1.02
_PER_LOG = 1 / log(RATIO)
FOLDERS = (Path("configs/policies"), Path())
"""Folders in which names are looked up first without `--policies-dir`. A replay uses the user's own decision log,
so policies in the working directory override the shipped ones of the same name.
"""


def load_contenders(names: Sequence[str], folder: Path | None, registry: Registry) -> list[Policy]:
    """Return the policies in the order given. Raises ConfigError with one line per problem."""

    def read(file: Path) -> Policy:
        return build_policy(file.stem, read_policy_file(file), registry)

    own = folder or next(path for path in FOLDERS if path.is_dir())
    return list(load_each("policy", names, read, *([own] if folder else [own, SHIPPED / "policies"])).values())


class ContenderResult(msgspec.Struct, frozen=True):
    """Comparison of one contender with the log. Differences are the contender's value minus the logged choice's:
    negative ms are a gain. None: no choice that the figure applies to.
    """

    policy: str
    digest: str
    choices: int
    agreed: int
    ttft_ms: float | None  # difference of predicted times to first token, mean over all choices
    ttft_p10_ms: float | None  # percentile of the differences where the contender chose another target
    ttft_p90_ms: float | None
    overlap_tokens: float | None  # difference of prefix hits, mean over choices where both targets' are known
    uneven_made: float | None  # logged choices: the busiest target's requests over the mean of all targets
    uneven: float | None  # the same ratio for the contender's choices
    moves: tuple[TargetMove, ...]  # most frequent first
    blind: int  # choices whose view lacks the cache overlaps that the contender uses: no policy needed them
    partial: int  # choices where the contender might have chosen a candidate that the log omits
    failed: int
    fault: str | None  # message of the first failure

    @property
    def agreement(self) -> float | None:
        """Share of choices equal to the logged ones; None without choices."""
        return self.agreed / self.choices if self.choices else None


class Contender:
    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._follower = ShadowPolicy(SESSIONS)
        self._differences = RegretSummary()
        self._where_other = QuantileSketch()
        self._blind = self._partial = 0
        self._fault: str | None = None

    def add(self, view: View, part: Part, chosen: Row, decided_by: Policy | None = None) -> None:
        """Decide on `view` and compare the choice with `chosen`, the row of the logged target.

        `decided_by`: the policy that made the logged choice, whose candidates the log holds in full; None: unknown.
        """
        try:
            own = self._follower.decide(self.policy, view, part, chosen.target)
        except PolicyFault as fault:
            self._differences.failed += 1
            self._fault = self._fault or str(fault)
            return
        self._blind += lacks_cache_facts(self.policy, view)
        self._partial += self.policy.might_choose_omitted(view, decided_by)
        difference = self._differences.add(view, chosen, own.row)
        if own.target != chosen.target:
            self._where_other.add(difference.ttft_ms)

    def result(self) -> ContenderResult:
        """Return the comparison so far."""
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


class QuantileSketch:
    """Quantiles of differences, in bounded memory: buckets 2 % wide on either side of zero.

    A difference of a millisecond or an hour falls into a bucket of its own order of magnitude (as in DDSketch,
    Masson, Rim & Lee, VLDB 2019), so a quantile is within 1 % of the true one at any scale. Values below `FLOOR`
    count as zero; the magnitudes of all floats fit into some 36,000 buckets, those of a million real differences
    into a few hundred.
    """

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._count = 0

    def add(self, value: float) -> None:
        """Add a finite number."""
        self._counts[_bucket(value)] += 1
        self._count += 1

    def at(self, share: float) -> float | None:
        """Return the least value that at least `share` (0 to 1) of all values do not exceed; None without
        values.
        """
        if not self._count:
            return None
        needed, seen = max(1, ceil(share * self._count)), 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= needed:
                return _middle(bucket)
        raise AssertionError("the counts add up to all")


def _bucket(value: float) -> int:
    """Return 0 for zero; 1, 2, ... upwards from FLOOR; -1, -2, ... downwards from -FLOOR."""
    size = abs(value)
    if size <= FLOOR:
        return 0
    number = int(log(size / FLOOR) * _PER_LOG) + 1
    return number if value > 0 else -number


def _middle(bucket: int) -> float:
    if bucket == 0:
        return 0.0
    size: float = FLOOR * RATIO ** (abs(bucket) - 0.5)
    return size if bucket > 0 else -size
