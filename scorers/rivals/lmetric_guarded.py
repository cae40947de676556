"""LMetric with its guard against hot spots: new prefill times batch; a class of prompts may be moved off its
holders.

    cost  = max(1, uncached tokens) * (requests + 1)
    class = prompts with the same first `class_prefix_blocks` blocks
    alarm   if  x / (1 - x) > |M| / |M'|      x: share of the class in the last `window_requests`; M: targets that hold
                                              its first blocks; M': all others
    M is left out from the 2|M|th request in a row of the class on that is best placed on M during an alarm

A product prefers a holder until the holder is many times as busy as others. If a class's share of the requests is
larger than the share of its holders among the targets, the holders cannot serve the class, so after two rounds the
next request goes elsewhere and leaves a copy there. M is then larger, and the alarm ends as soon as the copies
match the share.

Zhang et al., "Simple is Better: Multiplication May Be All You Need for LLM Request Scheduling" (arXiv 2603.15202),
in the form and with the defaults of ai-dynamo/dynamo, lib/router-plugins/builtin/src/lmetric.rs. Both factors
differ from `lmetric`, which is an earlier form of Dynamo's (pull request 11028): there queued prefill is added, and
the second factor is blocks in use.

Differences: the window counts choices, as Dynamo's does, not seconds as in the paper; a prefix is known at 1, 2, 4,
8, ... blocks only.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from scorers.blocks import block_tokens, fill_held, sent_tokens, whole_tokens
from scorers.contract import Needs, Row, Scorer, Unit, View
from scorers.parameters import check_at_least


class Watch(NamedTuple):
    """State of a class of prompts, with one more request of the class counted."""

    prefix: int
    streak: int  # successive requests best placed on holders during an alarm
    exhausted: bool  # whether holders are left out


@dataclass
class LmetricGuarded(Scorer):
    """Tokens to prefill there, times the batch with this request in it; holders of a hot class cost more than
    others.

    Held is what the GPU holds or was just sent. Missing: a row with an unknown overlap is taken to hold what the
    others hold on average, but is no holder of a class; where the prompt's length is unknown, the longest run that
    any row holds stands in for it. A prompt shorter than a class's blocks, or whose prefixes are unknown, belongs
    to none.
    """

    needs = Needs.CACHE | Needs.LOAD
    unit = Unit.RAW

    class_prefix_blocks: int = 4
    window_requests: int = 1000

    _window: deque[int] = field(default_factory=deque, init=False, repr=False)
    _arrivals: Counter[int] = field(default_factory=Counter, init=False, repr=False)
    _streaks: dict[int, int] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        """Raise ValueError if a parameter is out of bounds, or no power of two where it must be one."""
        check_at_least(1, class_prefix_blocks=self.class_prefix_blocks, window_requests=self.window_requests)
        if self.class_prefix_blocks.bit_count() != 1:
            raise ValueError(f"class_prefix_blocks: found {self.class_prefix_blocks}, wanted a power of two")

    def score(self, view: View) -> Sequence[float]:
        costs, holders = self._costs(view), self._holders(view)
        watch = self._watch(view, costs, holders)
        if watch is None or not watch.exhausted:
            return costs
        most = max(costs)
        return [cost + most if holds else cost for cost, holds in zip(costs, holders, strict=True)]

    def parts(self, view: View) -> Mapping[str, Sequence[float]]:
        costs = self._costs(view)
        guarded = zip(self.score(view), costs, strict=True)
        return {"own_prefill_times_batch": costs, "hot_class": [whole - cost for whole, cost in guarded]}

    def picked(self, view: View, row: Row) -> None:
        watch = self._watch(view, self._costs(view), self._holders(view))
        if watch is None:
            return
        if len(self._window) == self.window_requests:
            oldest = self._window.popleft()
            self._arrivals[oldest] -= 1
            if not self._arrivals[oldest]:
                del self._arrivals[oldest]
                self._streaks.pop(oldest, None)
        self._window.append(watch.prefix)
        self._arrivals[watch.prefix] += 1
        self._streaks[watch.prefix] = watch.streak

    def _costs(self, view: View) -> list[float]:
        whole = whole_tokens(view)
        held = fill_held(view.rows)
        return [max(1.0, whole - tokens) * (row.load.requests + 1) for row, tokens in zip(view.rows, held, strict=True)]

    def _holders(self, view: View) -> list[bool]:
        """Return which rows hold the first blocks of the prompt's class."""
        enough = self.class_prefix_blocks * block_tokens(view.rows)
        return [row.overlap is not None and sent_tokens(row.overlap) >= enough for row in view.rows]

    def _watch(self, view: View, costs: Sequence[float], holders: Sequence[bool]) -> Watch | None:
        """Return the state of the prompt's class with this request in the window; None if it has no class."""
        index = self.class_prefix_blocks.bit_length() - 1
        if len(view.prefixes) <= index:
            return None
        prefix = view.prefixes[index]
        full = len(self._window) == self.window_requests
        earlier = self._arrivals[prefix] - (full and self._window[0] == prefix)
        share = (earlier + 1) / (len(self._window) + (not full))
        having = sum(holders)
        lacking = len(holders) - having
        best = min(range(len(costs)), key=lambda i: (costs[i], view.rows[i].target))
        if not (having and lacking and holders[best] and share * lacking > (1 - share) * having):
            return Watch(prefix, 0, False)
        streak = (self._streaks.get(prefix, 0) if earlier else 0) + 1
        return Watch(prefix, streak, streak >= 2 * having)
