"""The probability that a silent session comes back, learned from earlier silences.

No client announces the end of a session, so a silent session counts with its probability to return. A silence
passes through stages, each but the first as long as all before it together, until the session is dropped after
`idle_s`:

    silent for   0 .. 0.6 s   .. 1.2 s   .. 2.3 s   ...   .. 75 s   .. 150 s   .. 300 s   dropped
    stage            0           1          2                7          8         9

A session leaves a stage by returning or by staying silent; the probability that it ever returns is one minus the
product of the shares that stay silent in the stages still ahead (Kaplan and Meier 1958, grouped). So a silence that
has not ended counts too, for the stages that it has passed. The prior, worth `PRIOR` silences, is that a stage
behaves like the one before it, and that every session returns in the first: until something is learned, all
sessions count in full.
"""

from __future__ import annotations

from collections.abc import Sequence

STAGES = 10
PRIOR = 10
SAMPLE_LIMIT = 1000  # silences per stage; at twice as many both counts are halved, so that the estimate follows changes


class ReturnProbability:
    def __init__(self, idle_s: float) -> None:
        ends = [idle_s / 2 ** (STAGES - 1 - stage) for stage in range(STAGES)]
        self.lengths_s: Sequence[float] = [end - begin for begin, end in zip([0.0, *ends], ends, strict=False)]
        self._left = [0.0] * STAGES
        self._returned = [0.0] * STAGES
        self._chances: list[float] | None = [1.0] * STAGES

    @property
    def chances(self) -> Sequence[float]:
        """The probability, per stage, that a session which has reached the stage returns."""
        if self._chances is None:
            self._chances = self._estimate()
        return self._chances

    def _estimate(self) -> list[float]:
        silent_shares, share = [], 1.0
        for returned, left in zip(self._returned, self._left, strict=True):
            share = (returned + PRIOR * share) / (left + PRIOR)
            silent_shares.append(1 - share)
        chances, lost = [], 1.0
        for silent_share in reversed(silent_shares):
            lost *= silent_share
            chances.append(1 - lost)
        return chances[::-1]

    def add_return(self, stage: int) -> None:
        """Count a silence that ended within `stage`."""
        self._returned[stage] += 1
        self.add_survival(stage)

    def add_survival(self, stage: int) -> None:
        """Count a silence that lasted longer than `stage`."""
        self._left[stage] += 1
        if self._left[stage] >= 2 * SAMPLE_LIMIT:
            self._left[stage] /= 2
            self._returned[stage] /= 2
        self._chances = None
