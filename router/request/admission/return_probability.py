"""How likely somebody who has been silent for so long comes back, learned from those who did and those who did not.

Nobody says when a session has ended, so a silent one counts with the chance that it comes back. A silence passes
through stages, each but the first as long as all before it together, until after `idle_s` it is given up:

    silent for   0 .. 0.6 s   .. 1.2 s   .. 2.3 s   ...   .. 75 s   .. 150 s   .. 300 s   given up
    stage            0           1          2                7          8         9

Of those that leave a stage, some leave it by coming back; the chance to come back at all is one minus the product of
the other shares over the stages still ahead (Kaplan and Meier 1958, grouped). So a silence that is not over yet
teaches, too, as far as it has come. A stage that few have left yet is taken to be like the one before it, and the first
one to bring everybody back, as far as that is worth `PRIOR` silences: at first all count fully.
"""

from __future__ import annotations

from collections.abc import Sequence

STAGES = 10
PRIOR = 10
REMEMBERED = 1000  # silences that a stage judges by: twice as many are counted as half, so that it follows changes


class ReturnProbability:
    def __init__(self, idle_s: float) -> None:
        ends = [idle_s / 2 ** (STAGES - 1 - stage) for stage in range(STAGES)]
        self.lengths_s: Sequence[float] = [end - begin for begin, end in zip([0.0, *ends], ends, strict=False)]
        self._left = [0.0] * STAGES
        self._came = [0.0] * STAGES
        self._chances: list[float] | None = [1.0] * STAGES

    @property
    def chances(self) -> Sequence[float]:
        """Per stage: the chance that somebody who has come so far comes back."""
        if self._chances is None:
            self._chances = self._worked_out()
        return self._chances

    def _worked_out(self) -> list[float]:
        stays, share = [], 1.0
        for came, left in zip(self._came, self._left, strict=True):
            share = (came + PRIOR * share) / (left + PRIOR)
            stays.append(1 - share)
        chances, gone = [], 1.0
        for stay in reversed(stays):
            gone *= stay
            chances.append(1 - gone)
        return chances[::-1]

    def came_back(self, stage: int) -> None:
        """A silence was over within that stage."""
        self._came[stage] += 1
        self.went_on(stage)

    def went_on(self, stage: int) -> None:
        """A silence lasted longer than that stage."""
        self._left[stage] += 1
        if self._left[stage] >= 2 * REMEMBERED:
            self._left[stage] /= 2
            self._came[stage] /= 2
        self._chances = None
