"""A filter that keeps the few targets worth pricing: near-longest holders of the prompt and the shortest queues.

    keep a row if   its run >= share * the longest run        on the GPU, or over all tiers of the instance
    or              its wait is the least of all

A target in between, with less of the prompt than one target and no shorter queue than another, is beaten in one
respect without winning in the other. So `warm` decides as well among the kept rows as among all (its evidence:
share 0.9), and a fleet of many targets costs little more than one of few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scorers.contract import Filter, Measure, Needs, View
from scorers.parameters import check_above_0, check_shares
from scorers.row_loops import near_or_first


@dataclass(frozen=True)
class NearLongest(Filter):
    """Keeps targets that hold `share` of the longest run of the prompt that any holds, and those with the least
    wait.

    A run on the GPU (including what was just sent there) is compared with the longest on a GPU, one over all of the
    instance's tiers with the longest over all tiers. Either suffices, so that a long run on one target's disk does
    not drop a shorter one on a GPU. The pool does not count, it is the same for all. The wait is our own queue,
    plus the requests of others in the engine, taken for prompts as long as this one with nothing cached, on the
    nominal instance (without one, on their own). All rows with the least wait stay: an idle fleet is priced whole.

    Missing: a row with an unknown overlap is near nothing, but may have the least wait. If no run is known, or none
    is longer than 0, all stay. Unreported or old queues of others are taken for average ones.
    """

    needs = Needs.CACHE | Needs.LOAD

    share: float = 0.9
    stale_s: float = 15.0

    def __post_init__(self) -> None:
        check_shares(share=self.share)
        check_above_0(share=self.share, stale_s=self.stale_s)

    def keep(self, view: View) -> Sequence[bool]:
        return near_or_first(view, self.share, self.stale_s)

    def settled_by(self) -> Measure:
        return Measure.QUEUE
