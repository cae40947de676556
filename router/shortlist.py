"""The few candidates of a large fleet that can win a choice, found without pricing all of them.

    everybody --> groups that hold the same of the prompt --> of each, who has the least of what settles a choice

A policy may promise what its choices are settled by among candidates that hold the same (`Measure`, in the contract):
then of all that hold nothing, say, and of all that hold the common beginning, only those with the shortest queue or the
least work left need a row. Who ties for that is drawn, so that equals go on having equal chances: `EQUALS` of them are
kept, since a choice among several is what it looks like.

A filter first and then a price settle it in two ways: where the filter keeps a whole group, the least price wins; where
it keeps only those with the least of its own measure, the least price among them. `Policy.orders` says both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import compress
from operator import add, itemgetter
from typing import Any, NamedTuple

from router.fleet.lineup import Lineup
from scorers.chance import draws
from scorers.contract import Measure, Overlap, PoolHit
from scorers.streams import per_step
from scorers.ttft import Prompt, alike_ms, least_ms, prompt_held

Order = tuple[Measure, ...]
"""The least of the first measure wins; of those that tie, the least of the next."""

SMALL = 64  # up to so many candidates are all shown: finding the few costs as much
EQUALS = 4
SERVED = {Measure.SERVED: Measure.WORK_LEFT, Measure.SERVED_BUT_POOL: Measure.WORK_LEFT_BUT_POOL}
"""Of which each is made."""


class Request(NamedTuple):
    number: int
    seed: int
    prompt_tokens: int | None
    pool: PoolHit | None
    answer_tokens: float  # as `scorers.streams` takes it


def shortlist(
    lineup: Lineup, groups: Mapping[Overlap, Sequence[int]], orders: Collection[Order], request: Request
) -> list[int]:
    """Slots of `lineup`, in their order. `groups`: the candidates' slots by what they hold; none is empty."""
    known = list(groups)
    prompts = {
        measure: prompt_held(request.prompt_tokens, request.pool if measure is Measure.WORK_LEFT else None, known)
        for measure in {SERVED.get(measure, measure) for order in orders for measure in order} & {*SERVED.values()}
    }
    kept: set[int] = set()
    for overlap, slots in groups.items():
        if len(slots) <= EQUALS:  # not worth comparing
            kept.update(slots)
            continue
        columns = _Columns(lineup, slots, overlap, prompts, request.answer_tokens)
        for order in orders:
            tied = _least(slots, order, columns)
            kept.update(tied if len(tied) <= EQUALS else _some(tied, request))
    return sorted(kept)


def all_but(count: int, others: Collection[int]) -> Sequence[int]:
    """0 to `count`, without `others`."""
    if not others:
        return range(count)
    flags = bytearray(b"\1") * count
    for other in others:
        flags[other] = 0
    return list(compress(range(count), flags))


class _Columns(dict[Measure, Sequence[float]]):
    """What each of `slots`, several that all hold `overlap`, has of a measure: made when first asked for."""

    def __init__(
        self,
        lineup: Lineup,
        slots: Sequence[int],
        overlap: Overlap,
        prompts: Mapping[Measure, Prompt],
        answer_tokens: float,
    ) -> None:
        self._lineup = lineup
        self._of: Callable[[Sequence[Any]], Sequence[Any]] = itemgetter(*slots)
        self._overlap = overlap
        self._prompts = prompts
        self._answer_tokens = answer_tokens

    def __missing__(self, measure: Measure) -> Sequence[float]:
        lineup, of = self._lineup, self._of
        if measure is Measure.REQUESTS:
            column = of(lineup.requests)
        elif measure is Measure.QUEUE:
            column = of(lineup.queued_ms)
        elif measure in SERVED:
            column = self._served(SERVED[measure])
        else:
            column = alike_ms(of(lineup.ahead), self._overlap, self._prompts[measure]) or self._searched(measure)
        self[measure] = column
        return column

    def _served(self, left: Measure) -> Sequence[float]:
        """`left` is the queue and the work: the work counts once more for those whom it holds up."""
        lineup, of, answer, prompt = self._lineup, self._of, self._answer_tokens, self._prompts[left].whole
        columns = zip(
            self[left], of(lineup.queued_ms), of(lineup.held_up), of(lineup.step_ms), of(lineup.memory), strict=True
        )
        return [
            both + (both - queued) * held_up + answer * step_ms * per_step(live, capacity, prompt)
            for both, queued, held_up, step_ms, (live, capacity) in columns
        ]

    def _searched(self, measure: Measure) -> Sequence[float]:
        """Where there are more ways to have the prompt's KV than `alike_ms` knows."""
        lineup, of, prompt = self._lineup, self._of, self._prompts[measure]
        works = (least_ms(self._overlap, speed, prompt) for speed in of(lineup.speeds))
        return list(map(add, of(lineup.queued_ms), works))


def _least(slots: Sequence[int], order: Order, columns: _Columns) -> Sequence[int]:
    """Those of `slots` that come first in this order."""
    tied: Sequence[int] = range(len(slots))
    for measure in order:
        if len(tied) == 1:
            break
        values = columns[measure]
        if len(tied) < len(slots):
            values = itemgetter(*tied)(values)
        least = min(values)
        if values.count(least) == 1:
            tied = [tied[values.index(least)]]
        else:
            tied = [place for place, value in zip(tied, values, strict=True) if value == least]
    return [slots[place] for place in tied]


def _some(tied: Sequence[int], request: Request) -> list[int]:
    """`EQUALS` neighbours, from a place by chance on: each of `tied` as likely as any other."""
    (lot,) = draws(request.seed, request.number, ["equals"], use="shortlist")
    first = int(lot * len(tied))
    return [tied[(first + i) % len(tied)] for i in range(EQUALS)]
