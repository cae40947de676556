"""Accuracy of the router's own tokenizer for one model: checks against the engine, and every answer's token count.

Two events end its use at once in favour of the engine's tokenizer: a probe whose ids differ from the engine's, and an
answer whose `prompt_tokens` is not our count. A later check of the same instance in which every probe agrees clears the
first. The second is graver, since it happened on a real prompt that no probe covered: it is cleared only when
`AGREEING` prompts in a row were tokenised both here and by the engine, with the same ids.
"""

from __future__ import annotations

from dataclasses import dataclass, field

AGREEING = 20


@dataclass(slots=True)
class TokenizerAccuracy:
    """State of one model's tokenizer. `proofs` and `mismatches` only count up; they are metrics."""

    proofs: int = 0
    mismatches: int = 0
    refuted: dict[str, str] = field(default_factory=dict)  # by instance: the first probe that differed
    must_agree: int = 0  # prompts that must still agree after a wrong count

    @property
    def trusted(self) -> bool:
        """Return whether the router's own tokenizer is used."""
        return not self.refuted and self.must_agree == 0

    def record_agreement(self, instance: str) -> None:
        """Record that every probe agreed at `instance`."""
        self.proofs += 1
        self.refuted.pop(instance, None)

    def record_mismatch(self, instance: str, probe: str) -> None:
        """Record that `probe` gave other ids at `instance`."""
        self.mismatches += 1
        self.refuted[instance] = probe

    def record_miscount(self) -> None:
        """Record an answer whose prompt_tokens is not our count."""
        self.mismatches += 1
        self.must_agree = AGREEING

    def record_comparison(self, same: bool) -> None:
        """Record a prompt tokenised both here and by the engine, after a wrong count."""
        self.must_agree = max(0, self.must_agree - 1) if same else AGREEING
