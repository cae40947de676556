"""Whether our own tokenizing of one model may be believed: proofs against the engine, and every answer's count.

Two things speak against us: a probe whose ids differ from the engine's, and an answer whose `prompt_tokens` is not
our count. Either sends the model to the engine's tokenizer at once. A later proof of the same instance in which every
probe agrees clears the first. The second is heavier, since it happened on a real prompt that no probe foresaw: it goes
only when `AGREEING` prompts in a row were tokenised both here and by the engine, with the same ids.
"""

from __future__ import annotations

from dataclasses import dataclass, field

AGREEING = 20


@dataclass(slots=True)
class TokenizerAccuracy:
    """Of one model. `proofs` and `mismatches` count up for ever; they are metrics."""

    proofs: int = 0
    mismatches: int = 0
    refuted: dict[str, str] = field(default_factory=dict)  # by instance: the first probe that differed in its proof
    must_agree: int = 0  # prompts that must still agree after a wrong count

    @property
    def trusted(self) -> bool:
        return not self.refuted and self.must_agree == 0

    def record_agreement(self, instance: str) -> None:
        self.proofs += 1
        self.refuted.pop(instance, None)

    def record_mismatch(self, instance: str, probe: str) -> None:
        self.mismatches += 1
        self.refuted[instance] = probe

    def record_miscount(self) -> None:
        self.mismatches += 1
        self.must_agree = AGREEING

    def record_comparison(self, same: bool) -> None:
        """A prompt was tokenised both here and by the engine, after a wrong count."""
        self.must_agree = max(0, self.must_agree - 1) if same else AGREEING
