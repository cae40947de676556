"""How far each policy stays behind the best one, cell by cell: the arithmetic of the grid's tables. Pure.

    loss     share of the best throughput that an arm does not reach
    excess   its p90 TTFT over the least p90 among the arms within 3 % of the best throughput, which alone are eligible:
             whoever serves less waits less. Negative: less than the best eligible

Both are of means over the seeds. The bar for the default policy: within 3 % and 10 % in 95 % of the cells, never beyond
5 % and 20 %, and best in both sums. The sums say how good an arm is overall: its throughput over the cell's best, added
up, and the geometric mean of its p90 over the best eligible one. The bar has no absolute floor: where the best p90 is
60 ms, 7 ms are over it.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

ELIGIBLE = 0.03


class Bar(NamedTuple):
    loss: float
    excess: float

    def holds(self, regret: Regret) -> bool:
        return regret.loss <= self.loss and regret.excess <= self.excess


NEAR, WORST = Bar(0.03, 0.10), Bar(0.05, 0.20)
TROUBLED = Bar(0.05, 0.30)
SHARE = 0.95


class Score(NamedTuple):
    """What one arm reached in one cell. `p90_s` is infinite where no request got its first token."""

    cell: str
    arm: str
    requests_per_s: float
    p90_s: float


class Regret(NamedTuple):
    cell: str
    arm: str
    loss: float
    excess: float


class CellResult(NamedTuple):
    """One arm in one cell beside the best there."""

    own: Score
    fastest: Score  # the most requests per second
    soonest: Score  # the least p90 among the eligible
    regret: Regret


class Standing(NamedTuple):
    """An arm over all its cells. `within`: share of them within NEAR."""

    arm: str
    cells: int
    within: float
    worst_loss: float
    worst_excess: float
    throughput: float
    p90: float


def means(scores: Iterable[Score]) -> list[Score]:
    """One score per cell and arm: the means over its seeds."""
    seeds: dict[tuple[str, str], list[Score]] = defaultdict(list)
    for score in scores:
        seeds[score.cell, score.arm].append(score)
    return [
        Score(cell, arm, *(statistics.fmean(column) for column in zip(*(some[2:] for some in these), strict=True)))
        for (cell, arm), these in seeds.items()
    ]


def regrets(scores: Iterable[Score]) -> list[Regret]:
    """`scores` with one per cell and arm (`means`)."""
    cells: dict[str, list[Score]] = defaultdict(list)
    for score in scores:
        cells[score.cell].append(score)
    return [regret for these in cells.values() for regret in _of_cell(these)]


def results_of(arm: str, scores: Iterable[Score]) -> list[CellResult]:
    """The cells in which `arm` was measured; `scores` as for `regrets`."""
    cells: dict[str, list[Score]] = defaultdict(list)
    for score in scores:
        cells[score.cell].append(score)
    found = []
    for these in cells.values():
        fastest, soonest = _best(these)
        pairs = zip(these, _of_cell(these), strict=True)
        found += [CellResult(own, fastest, soonest, regret) for own, regret in pairs if own.arm == arm]
    return found


def _best(scores: Sequence[Score]) -> tuple[Score, Score]:
    """The fastest, and the soonest of those near it; where two are equal, the first by name."""
    fastest = min(scores, key=lambda score: (-score.requests_per_s, score.arm))
    eligible = (score for score in scores if score.requests_per_s >= (1 - ELIGIBLE) * fastest.requests_per_s)
    return fastest, min(eligible, key=lambda score: (score.p90_s, score.arm))


def _of_cell(scores: Sequence[Score]) -> Iterable[Regret]:
    fastest, soonest = _best(scores)
    best = fastest.requests_per_s
    for score in scores:
        loss = 1 - score.requests_per_s / best if best > 0 else 0.0
        yield Regret(score.cell, score.arm, loss, _excess(score.p90_s, soonest.p90_s))


def _excess(p90_s: float, least_s: float) -> float:
    if math.isinf(p90_s):
        return 0.0 if math.isinf(least_s) else math.inf
    return p90_s / least_s - 1 if least_s > 0 else 0.0


def standings(found: Iterable[Regret]) -> list[Standing]:
    """The best first: by cells within the bar, then by the geometric mean of p90."""
    arms: dict[str, list[Regret]] = defaultdict(list)
    for regret in found:
        arms[regret.arm].append(regret)
    ranked = [_standing(arm, these) for arm, these in arms.items()]
    return sorted(ranked, key=lambda one: (-one.within, one.p90, one.arm))


def _standing(arm: str, its: Sequence[Regret]) -> Standing:
    return Standing(
        arm,
        len(its),
        sum(NEAR.holds(regret) for regret in its) / len(its),
        max(regret.loss for regret in its),
        max(regret.excess for regret in its),
        sum(1 - regret.loss for regret in its) / len(its),
        _geometric([1 + regret.excess for regret in its]),
    )


def _geometric(values: Sequence[float]) -> float:
    if any(math.isinf(value) for value in values):
        return math.inf
    return statistics.geometric_mean(values)


def lost_to_trouble(scores: Mapping[tuple[str, str], Score], pairs: Mapping[str, str]) -> list[Regret]:
    """Each arm in a troubled cell against itself in the clean one; `pairs`: troubled cell -> clean cell."""
    found = []
    for (cell, arm), hurt in scores.items():
        clean = scores.get((pairs.get(cell, ""), arm))
        if clean is not None and clean.requests_per_s > 0:
            loss = 1 - hurt.requests_per_s / clean.requests_per_s
            found.append(Regret(cell, arm, loss, _excess(hurt.p90_s, clean.p90_s)))
    return found


def promising(found: Sequence[Regret], kept: int, always: Iterable[str]) -> list[str]:
    """The arms worth a whole grid after a first pass: in some cell the best eligible p90 within 3 % of the best
    throughput; then those with the best standing until there are `kept`; and `always`, whatever they did.
    """
    order = [standing.arm for standing in standings(found)]
    winners = {regret.arm for regret in found if regret.loss <= ELIGIBLE and regret.excess <= 0}
    chosen = [arm for arm in order if arm in winners]
    chosen += [arm for arm in order if arm not in winners][: max(0, kept - len(chosen))]
    return chosen + [arm for arm in always if arm in order and arm not in chosen]
