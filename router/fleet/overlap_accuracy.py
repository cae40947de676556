"""Is a target's event stream to be believed? Predicted overlap against delivered `cached_tokens`, answer by answer.

A stream can lie in two ways, and neither shows in the stream itself:

* It promises too much (lost removals, a restart not noticed). Then the target is `untrusted` and scored by
  approximate knowledge until its promises hold again.
* It promises nothing although the engine does hit its cache (wrong block size, another tokenizer or template, a hash
  or topic mismatch). That silence costs every hit and raises no error anywhere: it becomes an `alarm` for people.

Thresholds. Too much means by a block or more: less is rounding. One such answer is ordinary, because blocks may be
evicted between choice and prefill; 3 of the last 5 is not. Only answers of which events promised at least a block
are evidence, or a quiet target would be acquitted by prompts it never knew. Coming back takes 3 kept promises in a
row, so that a target on the edge does not flap. The caller goes on passing what *events* predicted, even while the
target is scored by something else: that is what brings it back by itself.
"""

from __future__ import annotations

WINDOW = 5
BROKEN_TO_DISTRUST = 3
KEPT_TO_TRUST = 3
MISSES_TO_ALARM = 8


class OverlapAccuracy:
    """`predicted` is what the index promised from events, in the GPU and slower local tiers, capped as engines do."""

    __slots__ = ("_missed_row", "_recent", "confirmed", "overestimated", "trusted", "underestimated")

    def __init__(self) -> None:
        self.trusted = True
        self.confirmed = 0
        self.overestimated = 0
        self.underestimated = 0  # delivered although nothing was predicted
        self._recent: tuple[bool, ...] = ()  # promise kept? newest last
        self._missed_row = 0

    def observe(self, predicted_tokens: int, delivered_tokens: int | None, block_tokens: int) -> None:
        """One answer has ended. None delivered: the engine did not say (no usage details), which proves nothing."""
        if delivered_tokens is None:
            return
        if predicted_tokens < block_tokens:
            if delivered_tokens >= block_tokens:
                self.underestimated += 1
                self._missed_row += 1
            return
        self._missed_row = 0
        held = predicted_tokens - delivered_tokens < block_tokens
        if held:
            self.confirmed += 1
        else:
            self.overestimated += 1
        self._recent = (*self._recent[1 - WINDOW :], held)
        if self.trusted:
            self.trusted = self._recent.count(False) < BROKEN_TO_DISTRUST
        elif self._recent[-KEPT_TO_TRUST:] == (True,) * KEPT_TO_TRUST:
            self.trusted = True
            self._recent = ()

    def reset(self) -> None:
        """A new process, a new stream: judged afresh. The counters go on."""
        self.trusted = True
        self._recent = ()
        self._missed_row = 0

    @property
    def alarm(self) -> str | None:
        """Worth showing only while the target's stream delivers events and was not joined late."""
        if self._missed_row < MISSES_TO_ALARM:
            return None
        return (
            f"the last {self._missed_row} cache hits that the engine reported were all unknown to the index: "
            "check that router and engine agree on tokenizer, chat template, model name and event topic"
        )
