"""When our own tokenizing is believed."""

from __future__ import annotations

from router.prompt.tokenization.accuracy import AGREEING, TokenizerAccuracy


def test_believed_until_something_speaks_against_it() -> None:
    assert TokenizerAccuracy().local


def test_a_differing_probe_is_cleared_by_the_same_instance_only() -> None:
    trust = TokenizerAccuracy()
    trust.differs("a", "plain")
    trust.proved("b")
    assert (trust.local, trust.mismatches, trust.proofs) == (False, 1, 1)
    trust.proved("a")
    assert trust.local


def test_a_wrong_count_needs_agreement_on_real_prompts() -> None:
    trust = TokenizerAccuracy()
    trust.miscounted()
    trust.proved("a")
    for _ in range(AGREEING - 1):
        trust.compared(True)
    assert not trust.local
    trust.compared(False)
    for _ in range(AGREEING):
        assert not trust.local
        trust.compared(True)
    assert trust.local
