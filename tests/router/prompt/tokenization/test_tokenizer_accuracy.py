"""When our own tokenizing is believed."""

from __future__ import annotations

from router.prompt.tokenization.tokenization import AGREEING, TokenizerAccuracy


def test_believed_until_something_speaks_against_it() -> None:
    assert TokenizerAccuracy().trusted


def test_a_differing_probe_is_cleared_by_the_same_instance_only() -> None:
    trust = TokenizerAccuracy()
    trust.record_mismatch("a", "plain")
    trust.record_agreement("b")
    assert (trust.trusted, trust.mismatches, trust.proofs) == (False, 1, 1)
    trust.record_agreement("a")
    assert trust.trusted


def test_a_wrong_count_needs_agreement_on_real_prompts() -> None:
    trust = TokenizerAccuracy()
    trust.record_miscount()
    trust.record_agreement("a")
    for _ in range(AGREEING - 1):
        trust.record_comparison(True)
    assert not trust.trusted
    trust.record_comparison(False)
    for _ in range(AGREEING):
        assert not trust.trusted
        trust.record_comparison(True)
    assert trust.trusted
