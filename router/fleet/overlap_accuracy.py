"""Accuracy of a target's event stream: predicted overlap against delivered `cached_tokens`, answer by answer.

A stream can be wrong in two ways, and neither shows in the stream itself:

* It predicts too much (lost removals, a restart not noticed). Then the target is not `trusted` and is scored by
  approximate blocks until its predictions hold again.
* It predicts nothing although the engine does hit its cache (wrong block size, another tokenizer or template, a hash or
  topic mismatch). That costs every hit and raises no error anywhere: it becomes an `alarm` for the operator.

Thresholds. Too much means by a block or more: less is rounding. One such answer is ordinary, because blocks may be
evicted between choice and prefill; 3 of the last 5 is not. Only answers for which events predicted at least a block
are evidence, or a quiet target would be acquitted by prompts it never knew. Trust returns after 3 correct
predictions in a row, so that a target on the edge does not flap. The caller goes on passing what *events*
predicted, even while the target is scored by something else: that is what restores trust by itself.
"""

from __future__ import annotations

from typing import Literal

from router.fleet.saved_parts import SavedAccuracy

WINDOW = 5
WRONG_TO_DISTRUST = 3
CORRECT_TO_TRUST = 3
MISSES_TO_ALARM = 8


Finding = Literal["confirmed", "overestimated", "underestimated"]


class OverlapAccuracy:
    """The accuracy of one target. `predicted` counts the GPU and slower local tiers, capped as engines do."""

    __slots__ = ("_missed_in_row", "_news", "_recent", "confirmed", "overestimated", "trusted", "underestimated")

    def __init__(self) -> None:
        self.trusted = True
        self.confirmed = 0
        self.overestimated = 0
        self.underestimated = 0  # tokens delivered although none were predicted
        self._recent: tuple[bool, ...] = ()  # whether each prediction was correct, newest last
        self._missed_in_row = 0
        self._news: Finding | None = None

    def observe(self, predicted_tokens: int, delivered_tokens: int | None, block_tokens: int) -> None:
        """Add an answer; `delivered_tokens` is None if the engine reports no usage details, which proves
        nothing.
        """
        if delivered_tokens is None:
            return
        if predicted_tokens < block_tokens:
            if delivered_tokens >= block_tokens:
                self.underestimated += 1
                self._news = "underestimated"
                self.add("underestimated")
            return
        if predicted_tokens - delivered_tokens < block_tokens:
            self.confirmed += 1
            in_doubt = not self.trusted or self._missed_in_row or False in self._recent
            self._news = "confirmed" if in_doubt else None
            self.add("confirmed")
        else:
            self.overestimated += 1
            self._news = "overestimated"
            self.add("overestimated")

    def take_news(self) -> Finding | None:
        """Return, once, what the last answer has shown; None where it changes nothing for other routers either."""
        news, self._news = self._news, None
        return news

    def add(self, finding: Finding) -> None:
        """Add what an answer has shown, given to this router or to another one, which counts it."""
        if finding == "underestimated":
            self._missed_in_row += 1
            return
        self._missed_in_row = 0
        correct = finding == "confirmed"
        self._recent = (*self._recent[1 - WINDOW :], correct)
        if self.trusted:
            self.trusted = self._recent.count(False) < WRONG_TO_DISTRUST
        elif self._recent[-CORRECT_TO_TRUST:] == (True,) * CORRECT_TO_TRUST:
            self.trusted = True
            self._recent = ()

    def reset(self) -> None:
        """Start anew for a new process with a new stream. The counters go on."""
        self.trusted = True
        self._recent = ()
        self._missed_in_row = 0

    def save(self) -> SavedAccuracy:
        """Return the evidence as a value, for another router."""
        return SavedAccuracy(self.trusted, self._recent, self._missed_in_row)

    def restore(self, saved: SavedAccuracy) -> None:
        """Continue from another router's evidence."""
        self.trusted, self._recent, self._missed_in_row = saved.trusted, saved.recent[-WINDOW:], saved.missed_in_row

    @property
    def alarm(self) -> str | None:
        """A message for the operator, or None. Valid only while the stream delivers events from its start."""
        if self._missed_in_row < MISSES_TO_ALARM:
            return None
        return (
            f"the last {self._missed_in_row} cache hits that the engine reported were all unknown to the index: "
            "check that router and engine agree on tokenizer, chat template, model name and event topic"
        )
