"""Accuracy of a target's event stream: predicted overlap compared with reported `cached_tokens`, answer by answer.

A stream can be wrong in two ways, and the stream itself shows neither:

* It predicts too much (lost removals, an unnoticed restart). Then the target is not `trusted` and is scored by
  approximate blocks until its predictions are correct again. If the engine then announces blocks anew that the index
  had as held, that *proves* the index wrong (blocks that were evicted between choice and prefill are announced as
  removed). The second proof within `PROOFS_WITHIN` answers makes the caller forget the index: what is announced from
  then on is right, so the target is trusted at once.
* It predicts nothing although the engine does hit its cache (wrong block size, another tokenizer or template, a
  hash or topic mismatch). This loses every hit without any error, so it raises an `alarm` for the operator.

Thresholds: "too much" means by more than a block; less is rounding. One such answer is normal, because blocks may be
evicted between choice and prefill; 3 of the last 5 are not. Only answers for which events predicted at least a block
are evidence; otherwise prompts that the target never held would restore trust. A single block that was not delivered
is none. Trust returns after 3 correct predictions in a row, so that a borderline target does not flap. The caller
continues to pass the predictions of *events* even while the target is scored by approximate blocks, so that trust is
restored automatically.

An engine that drafts with EAGLE or MTP computes the last block of every hit again (vLLM 0.32,
v1/core/kv_cache_coordinator.py), which no event shows. Three hits in a row that are a block short are taken as proof,
and three that are a block longer than predicted thereafter as proof of the opposite.
"""

from __future__ import annotations

from typing import Literal

from router.fleet.saved_parts import SavedAccuracy

WINDOW = 5
WRONG_TO_DISTRUST = 3
CORRECT_TO_TRUST = 3
MISSES_TO_ALARM = 8
SHORT_TO_DRAFTS = 3
PROOFS_WITHIN = 20


Finding = Literal["confirmed", "overestimated", "underestimated", "contradicted"]
"""What an answer shows of the prediction; `contradicted`: it proves that the index must be forgotten."""


class OverlapAccuracy:
    """The accuracy of one target. Predicted tokens include the GPU and slower local tiers, capped as engines do."""

    __slots__ = (
        *("_missed_in_row", "_news", "_recent", "_short_in_row", "_since_proof", "confirmed", "contradictions"),
        *("drafts", "overestimated", "trusted", "underestimated"),
    )

    def __init__(self) -> None:
        self.drafts = False  # whether the engine seems to compute the last block of every hit again
        self.confirmed = 0
        self.overestimated = 0
        self.underestimated = 0  # tokens delivered although none were predicted
        self.contradictions = 0  # times that the index was proved wrong
        self.trusted = True
        self._since_proof: int | None = None  # answers since the last proof; None: there is none
        self._recent: tuple[bool, ...] = ()  # whether each prediction was correct, newest last
        self._missed_in_row = 0
        self._short_in_row = 0  # hits whose last block was not as predicted
        self._news: Finding | None = None

    def observe(self, predicted_tokens: int, delivered_tokens: int | None, block_tokens: int) -> Finding | None:
        """Add an answer, and return what it shows; None if it is no evidence. `delivered_tokens` is None if the engine
        reports no usage details.
        """
        if delivered_tokens is None:
            return None
        if predicted_tokens < block_tokens:
            if delivered_tokens < block_tokens:
                return None
            self.underestimated += 1
            self._news = "underestimated"
            self.add("underestimated")
            return "underestimated"
        excess = predicted_tokens - delivered_tokens
        if excess == predicted_tokens == block_tokens:
            return None
        self._short_in_row = self._short_in_row + 1 if excess == (-block_tokens if self.drafts else block_tokens) else 0
        if self._short_in_row == SHORT_TO_DRAFTS:
            self.drafts, self._short_in_row = not self.drafts, 0
        if excess <= block_tokens:
            self.confirmed += 1
            in_doubt = not self.trusted or self._missed_in_row or False in self._recent
            self._news = "confirmed" if in_doubt else None
            self.add("confirmed")
            return "confirmed"
        self.overestimated += 1
        self._news = "overestimated"
        self.add("overestimated")
        return "overestimated"

    def take_news(self) -> Finding | None:
        """Return the finding of the last answer, once; None if it would change nothing at other routers."""
        news, self._news = self._news, None
        return news

    def add(self, finding: Finding) -> None:
        """Add the finding of an answer that this or another router received. The receiving router counts it."""
        if finding == "underestimated":
            self._missed_in_row += 1
            return
        self._missed_in_row = 0
        if finding == "contradicted":
            self._since_proof = None
            self.trusted, self._recent = True, ()
            return
        if self._since_proof is not None:
            self._since_proof += 1
        correct = finding == "confirmed"
        self._recent = (*self._recent[1 - WINDOW :], correct)
        if self.trusted:
            self.trusted = self._recent.count(False) < WRONG_TO_DISTRUST
        elif self._recent[-CORRECT_TO_TRUST:] == (True,) * CORRECT_TO_TRUST:
            self.trusted = True
            self._recent = ()

    def add_proof(self) -> bool:
        """Add a proof that the index is wrong, after the finding of the same answer. Return whether the index must be
        forgotten; its predictions are then judged afresh.
        """
        if self._since_proof is None or self._since_proof > PROOFS_WITHIN:
            self._since_proof = 0
            return False
        self.contradictions += 1
        self._news = "contradicted"
        self.add("contradicted")
        return True

    def reset(self) -> None:
        """Start again for a new process with a new stream. The counters are retained."""
        self.trusted, self._since_proof = True, None
        self.drafts = False
        self._recent = ()
        self._missed_in_row = self._short_in_row = 0

    def save(self) -> SavedAccuracy:
        """Return the evidence as a value, for another router."""
        return SavedAccuracy(self.trusted, self._recent, self._missed_in_row)

    def restore(self, saved: SavedAccuracy) -> None:
        """Continue from another router's evidence."""
        self.trusted, self._recent, self._missed_in_row = saved.trusted, saved.recent[-WINDOW:], saved.missed_in_row

    @property
    def alarm(self) -> str | None:
        """A message for the operator; None if there is no alarm. Valid only while the stream has delivered all
        events since its start.
        """
        if self._missed_in_row < MISSES_TO_ALARM:
            return None
        return (
            f"the last {self._missed_in_row} cache hits that the engine reported were all unknown to the index: "
            "check that router and engine agree on tokenizer, chat template, model name and event topic"
        )
