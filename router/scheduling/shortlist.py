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
from math import inf
from operator import add, itemgetter
from typing import Any, NamedTuple

from router.fleet.columns import CandidateColumns, PriceColumns
from scorers.chance import draws
from scorers.contract import Measure, Overlap, PoolHit
from scorers.streams import STREAMED
from scorers.ttft import PromptTokens, WorkAhead, alike_ms, least_ms, prompt_held

Order = tuple[Measure, ...]
"""The least of the first measure wins; of those that tie, the least of the next."""

FEW = 8  # one in so many is few
SMALL = 64  # up to so many candidates are all shown: finding the few costs as much
EQUALS = 4
SERVED = {Measure.SERVED: Measure.WORK_LEFT, Measure.SERVED_BUT_POOL: Measure.WORK_LEFT_BUT_POOL}
"""Of which each is made."""


class AlikeGroup(NamedTuple):
    slots: Sequence[int]
    excluded: Collection[int] = ()  # of those; they are few


class ShortlistRequest(NamedTuple):
    number: int
    seed: int
    prompt_tokens: int | None
    pool: PoolHit | None
    answer_tokens: float  # as `scorers.streams` takes it


def shortlist(
    lineup: CandidateColumns, groups: Mapping[Overlap, AlikeGroup], orders: Collection[Order], request: ShortlistRequest
) -> list[int]:
    """Slots of `lineup`, in their order. `groups`: the candidates' slots by what they hold; none is empty."""
    known = list(groups)
    prompts = {
        measure: prompt_held(request.prompt_tokens, request.pool if measure is Measure.WORK_LEFT else None, known)
        for measure in {SERVED.get(measure, measure) for order in orders for measure in order} & {*SERVED.values()}
    }
    kept: set[int] = set()
    for overlap, group in groups.items():
        if len(group.slots) <= EQUALS:  # not worth comparing
            kept.update(group.slots)
            continue
        columns = _Columns(lineup, group, overlap, prompts, request.answer_tokens)
        for order in orders:
            tied = [group.slots[place] for place in _first(order, columns)]
            kept.update(tied if len(tied) <= EQUALS else _some(tied, request))
    return sorted(kept)


def all_but(count: int, others: Collection[int]) -> AlikeGroup:
    """Slots 0 to `count`, without `others`. Where these are few, it is as dear to leave them out as to look at all."""
    if len(others) * FEW <= count:
        return AlikeGroup(range(count), others)
    flags = bytearray(b"\1") * count
    for other in others:
        flags[other] = 0
    return AlikeGroup(list(compress(range(count), flags)))


class _Columns(dict[Measure, Sequence[float]]):
    """What each of a group, several that all hold `overlap`, has of a measure: made when first asked for. Those that
    are `without` have infinitely much.
    """

    def __init__(
        self,
        lineup: CandidateColumns,
        group: AlikeGroup,
        overlap: Overlap,
        prompts: Mapping[Measure, PromptTokens],
        answer_tokens: float,
    ) -> None:
        self._lineup = lineup
        self._of: Callable[[Sequence[Any]], Sequence[Any]]
        self._of = _all if isinstance(group.slots, range) else itemgetter(*group.slots)
        self._slots, self._without = group.slots, group.excluded
        self._overlap = overlap
        self._prompts = prompts
        self._answer_tokens = answer_tokens
        self._least: dict[Measure, list[int]] = {}

    def __missing__(self, measure: Measure) -> Sequence[float]:
        column = self[measure] = list(self._column(measure))
        for place in self._without:
            column[place] = inf
        return column

    def least(self, measure: Measure) -> list[int]:
        """Places of those that have the least of it."""
        if measure not in self._least:
            self._least[measure] = places_of_least(self[measure])
        return self._least[measure]

    def _column(self, measure: Measure) -> Sequence[float]:
        lineup, of = self._lineup, self._of
        if measure is Measure.REQUESTS:
            return of(lineup.requests)
        if measure is Measure.QUEUE:
            return of(lineup.queued_ms)
        if measure in SERVED:
            return self._served(SERVED[measure])
        alike = alike_ms(self._ahead(lineup.prices), self._overlap, self._prompts[measure], 0.0)
        return list(map(add, of(lineup.queued_ms), self._searched(measure))) if alike is None else alike

    def _served(self, work: Measure) -> Sequence[float]:
        """The queue, the work, some of it once more for those whom it holds up, and the own answer."""
        lineup, of, answer, prompt = self._lineup, self._of, self._answer_tokens, self._prompts[work]
        prices, steps = lineup.weighted_prices, answer * STREAMED
        column = alike_ms(self._ahead(prices), self._overlap, prompt, steps)
        if column is None:
            parts = zip(
                of(lineup.queued_ms), self._searched(work), of(lineup.stall_cost), of(prices.ms_per_step), strict=True
            )
            column = [queued + work * (1 + held_up) + step * steps for queued, work, held_up, step in parts]
        if answer and not lineup.all_have_free(prompt.whole):
            for place, room in enumerate(of(lineup.free_tokens)):
                if (lacks := prompt.whole - room) > 0:
                    slot = self._slots[place]
                    capacity_tokens = lineup.targets[slot].capacity_tokens or inf
                    column[place] += answer * prices.ms_per_step[slot] * lacks / capacity_tokens
        return column

    def _ahead(self, of_all: PriceColumns) -> WorkAhead:
        of = self._of
        steps, links = of(of_all.ms_per_step), of(of_all.pool)
        return WorkAhead(of(of_all.fixed_ms), of(of_all.ms_per_token), of(of_all.ms_per_pair), steps, links)

    def _searched(self, measure: Measure) -> list[float]:
        """The work, where there are more ways to have the prompt's KV than `alike_ms` knows."""
        prompt = self._prompts[measure]
        return [least_ms(self._overlap, speed, prompt) for speed in self._of(self._lineup.speeds)]


def _all(column: Sequence[Any]) -> Sequence[Any]:
    return column


def _first(order: Order, columns: _Columns) -> list[int]:
    """Places of those that come first in this order."""
    first, *rest = order
    if not rest:
        return columns.least(first)
    (then,) = rest
    column, places = columns[first], columns.least(then)
    least = 0 if any(column[place] == 0 for place in places) else min(column)  # nobody has less than nothing
    if both := [place for place in places if column[place] == least]:
        return both  # nobody has less of either: as a rule, and then nobody else need be looked at
    tied = columns.least(first)
    prices = columns[then]
    return [tied[place] for place in places_of_least([prices[place] for place in tied])]


def places_of_least(values: Sequence[float]) -> list[int]:
    least = min(values)
    if values.count(least) == 1:
        return [values.index(least)]
    return [place for place, value in enumerate(values) if value == least]


def _some(tied: Sequence[int], request: ShortlistRequest) -> list[int]:
    """`EQUALS` neighbours, from a place by chance on: each of `tied` as likely as any other."""
    (lot,) = draws(request.seed, request.number, ["equals"], use="shortlist")
    first = int(lot * len(tied))
    return [tied[(first + i) % len(tied)] for i in range(EQUALS)]
