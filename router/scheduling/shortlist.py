"""Shortlist: the few candidates of a large fleet that can win a choice, found without pricing all of them.

    all candidates --> groups that hold the same of the prompt --> from each, those with the least deciding measure

A policy may declare which measure (`Measure`, in the contract) decides among candidates that hold the same part of
a prompt. Then only the candidates with the shortest queue or the least work left need a row: of those that hold
nothing, of those that hold the common prefix, and so on. Ties are broken by a draw, so that equal candidates have
equal chances: `EQUALS` of them are listed, so that the decision still shows a choice among several.

A filter followed by a price decides in one of two ways: if the filter keeps a whole group, the least price wins; if
it keeps only the candidates with the least of its own measure, the least price among these wins. `Policy.orders`
contains both.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import compress
from math import inf
from typing import NamedTuple

from router.fleet.columns import CandidateColumns
from scorers.blocks import kept_tokens
from scorers.chance import draws
from scorers.contract import Measure, Overlap, PoolHit
from scorers.streams import SHORTAGE, STREAMED, growth_tokens
from scorers.ttft import PromptTokens, alike_ms, least_ms, prompt_held

Order = tuple[Measure, ...]
"""The candidate with the least first measure wins; among ties, the one with the least next measure."""

FEW = 8  # at most one in `FEW` counts as few
SMALL = 64  # up to this many candidates all get a row: a shortlist would cost as much
EQUALS = 4
SERVED = {Measure.SERVED: Measure.WORK_LEFT, Measure.SERVED_BUT_POOL: Measure.WORK_LEFT_BUT_POOL}
"""Maps each served measure to the work measure it includes."""


class AlikeGroup(NamedTuple):
    """Slots of candidates that hold the same part of a prompt, without the few `excluded` ones."""

    slots: Sequence[int]
    excluded: Collection[int] = ()  # of `slots`; they are few


class ShortlistRequest(NamedTuple):
    """Facts of the request that prices depend on."""

    number: int
    seed: int
    prompt_tokens: int | None
    pool: PoolHit | None
    answer_tokens: float  # as in `scorers.streams`


def shortlist(
    columns: CandidateColumns,
    groups: Mapping[Overlap, AlikeGroup],
    orders: Collection[Order],
    request: ShortlistRequest,
) -> list[int]:
    """Return the slots that can win, sorted. `groups` has the candidates' slots by overlap; no group is empty."""
    overlaps = list(groups)
    prompts = {
        measure: prompt_held(request.prompt_tokens, request.pool if measure is Measure.WORK_LEFT else None, overlaps)
        for measure in {SERVED.get(measure, measure) for order in orders for measure in order} & {*SERVED.values()}
    }
    listed: set[int] = set()
    draw: float | None = None  # one for all groups: it takes as long as pricing a hundred candidates
    for overlap, group in groups.items():
        if len(group.slots) <= EQUALS:  # comparing would save nothing
            listed.update(group.slots)
            continue
        measures = _GroupColumns(columns, group, overlap, prompts, request.answer_tokens)
        for order in orders:
            tied = [group.slots[place] for place in _first(order, measures)]
            if len(tied) > EQUALS:
                if draw is None:
                    (draw,) = draws(request.seed, request.number, ["equals"], use="shortlist")
                tied = _neighbours(tied, draw)
            listed.update(tied)
    return sorted(listed)


def all_but(count: int, others: Collection[int]) -> AlikeGroup:
    """Return the slots below `count` without `others`; listed one by one if `others` are not few."""
    if len(others) * FEW <= count:
        return AlikeGroup(range(count), others)
    flags = bytearray(b"\1") * count
    for other in others:
        flags[other] = 0
    return AlikeGroup(list(compress(range(count), flags)))


class _GroupColumns:
    """The measures of one group, computed on first use; excluded candidates have infinite values."""

    def __init__(
        self,
        columns: CandidateColumns,
        group: AlikeGroup,
        overlap: Overlap,
        prompts: Mapping[Measure, PromptTokens],
        answer_tokens: float,
    ) -> None:
        self._columns = columns
        self._slots, self._without = group.slots, group.excluded
        self._overlap = overlap
        self._prompts = prompts
        self._answer_tokens = answer_tokens
        self._measured: dict[Measure, list[float]] = {}
        self._least: dict[Measure, list[int]] = {}

    def column(self, measure: Measure) -> list[float]:
        """Return the measure of each place."""
        column = self._measured.get(measure)
        if column is None:
            column = self._measured[measure] = self._column(measure)
            for place in self._without:
                column[place] = inf
        return column

    def least(self, measure: Measure) -> list[int]:
        """Return the places with the lowest value of the measure."""
        if measure not in self._least:
            self._least[measure] = places_of_least(self.column(measure))
        return self._least[measure]

    def _column(self, measure: Measure) -> list[float]:
        columns, slots = self._columns, self._slots
        if measure is Measure.REQUESTS:
            requests = columns.requests
            return [requests[slot] for slot in slots]
        queued_ms = columns.queued_ms
        if measure is Measure.QUEUE:
            return queued_ms[:] if isinstance(slots, range) else [queued_ms[slot] for slot in slots]
        if measure in SERVED:
            return self._served(SERVED[measure])
        prompt = self._prompts[measure]
        alike = alike_ms(columns.prices, slots, self._overlap, prompt, 0.0)
        if alike is not None:
            return alike
        return [queued_ms[slot] + least_ms(self._overlap, columns.speeds[slot], prompt) for slot in slots]

    def _served(self, work: Measure) -> list[float]:
        """Return the sum of the queue, the work, the stalls that the work causes, and the request's own answer, in
        ms.
        """
        columns, answer, prompt, overlap = self._columns, self._answer_tokens, self._prompts[work], self._overlap
        prices, steps = columns.weighted_prices, answer * STREAMED
        column = alike_ms(prices, self._slots, overlap, prompt, steps)
        if column is None:
            column = []
            for slot in self._slots:
                ms = least_ms(overlap, columns.speeds[slot], prompt) * (1 + columns.stall_cost[slot])
                column.append(columns.queued_ms[slot] + ms + prices.ms_per_step[slot] * steps)
        needed = prompt.whole - kept_tokens(overlap)
        if answer and not columns.all_have_free(needed, answer):
            for place, slot in enumerate(self._slots):
                lacks = needed + growth_tokens(columns.requests[slot], answer) - columns.free_tokens[slot]
                if lacks > 0:
                    capacity_tokens = columns.targets[slot].capacity_tokens or inf
                    column[place] += SHORTAGE * answer * prices.ms_per_step[slot] * lacks / capacity_tokens
        return column


def _first(order: Order, measures: _GroupColumns) -> list[int]:
    """Return the places that come first in this order."""
    first, *rest = order
    if not rest:
        return measures.least(first)
    (then,) = rest
    column, places = measures.column(first), measures.least(then)
    least = 0 if any(column[place] == 0 for place in places) else min(column)  # 0 is the least possible
    if both := [place for place in places if column[place] == least]:
        return both  # the usual case: these have the least of both measures, so no other candidate matters
    tied = measures.least(first)
    prices = measures.column(then)
    return [tied[place] for place in places_of_least([prices[place] for place in tied])]


def places_of_least(values: list[float]) -> list[int]:
    """Return the indices of the least values."""
    least = inf
    places: list[int] = []
    for place, value in enumerate(values):  # one loop is faster than `min` and `count` once it is compiled
        if value < least:
            least, places = value, [place]
        elif value == least:
            places.append(place)
    return places


def _neighbours(tied: Sequence[int], draw: float) -> list[int]:
    """Return `EQUALS` neighbours, starting at a drawn place: each of `tied` is equally likely."""
    first = int(draw * len(tied))
    return [tied[(first + i) % len(tied)] for i in range(EQUALS)]
