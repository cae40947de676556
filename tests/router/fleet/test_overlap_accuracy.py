"""Promises kept and broken, as stories. Blocks of 16 tokens throughout."""

from __future__ import annotations

import pytest

from router.fleet.overlap_accuracy import MISSES_TO_ALARM, PROOFS_WITHIN, OverlapAccuracy

BLOCK = 16


def story(accuracy: OverlapAccuracy, *answers: tuple[int, int | None]) -> OverlapAccuracy:
    for predicted, delivered in answers:
        accuracy.observe(predicted, delivered, BLOCK)
    return accuracy


KEPT, BROKEN, MISSED, COLD = (160, 160), (160, 80), (0, 160), (0, 0)


def test_begins_trusted_and_one_eviction_is_ordinary() -> None:
    assert OverlapAccuracy().trusted
    assert story(OverlapAccuracy(), BROKEN, KEPT, BROKEN, KEPT, KEPT).trusted


def test_three_of_five_broken_is_too_many() -> None:
    accuracy = story(OverlapAccuracy(), KEPT, BROKEN, KEPT, BROKEN, BROKEN)
    assert not accuracy.trusted
    assert (accuracy.confirmed, accuracy.overestimated) == (2, 3)


def test_old_failures_are_forgotten() -> None:
    assert story(OverlapAccuracy(), BROKEN, BROKEN, KEPT, KEPT, KEPT, BROKEN, KEPT, BROKEN).trusted


def test_less_than_a_block_is_rounding_and_more_than_promised_is_fine() -> None:
    assert story(OverlapAccuracy(), *[(160, 145)] * 10, *[(160, 320)] * 10).trusted


def test_an_engine_that_drafts_is_trusted_and_known_for_it() -> None:
    accuracy = story(OverlapAccuracy(), (160, 144), (160, 160), (160, 144), (48, 32))
    assert not accuracy.drafts
    story(accuracy, (16, 0), (0, 0), (320, 304))
    assert accuracy.drafts, "three in a row; one block of one, or of none, proves nothing"
    assert accuracy.trusted
    assert accuracy.overestimated == 0
    story(accuracy, (144, 144), (144, 160), (144, 160), (144, 144), (144, 160), (144, 160))
    assert accuracy.drafts
    story(accuracy, (144, 160))
    assert not accuracy.drafts, "three in a row were a block longer"
    story(accuracy, *[(160, 144)] * 3).reset()
    assert not accuracy.drafts, "another process"


def test_more_than_a_block_less_is_too_much() -> None:
    assert not story(OverlapAccuracy(), *[(160, 143)] * 3).trusted


def test_answers_that_prove_nothing_change_nothing() -> None:
    accuracy = story(OverlapAccuracy(), BROKEN, BROKEN, *[COLD] * 9, (160, None), (15, 0), BROKEN)
    assert not accuracy.trusted, "the cold ones between did not push the broken ones out"


def test_comes_back_by_itself_after_three_kept_in_a_row() -> None:
    accuracy = story(OverlapAccuracy(), BROKEN, BROKEN, BROKEN)
    story(accuracy, KEPT, KEPT, BROKEN, KEPT, KEPT, COLD)
    assert not accuracy.trusted
    story(accuracy, KEPT)
    assert accuracy.trusted
    story(accuracy, BROKEN, BROKEN)
    assert accuracy.trusted, "judged afresh, not on the edge"


def test_hits_that_nobody_predicted_raise_the_alarm() -> None:
    accuracy = story(OverlapAccuracy(), *[MISSED] * (MISSES_TO_ALARM - 1), COLD)
    assert accuracy.alarm is None
    story(accuracy, MISSED)
    assert accuracy.alarm is not None
    assert "tokenizer" in accuracy.alarm
    assert accuracy.trusted, "it promised nothing, so it broke nothing"
    story(accuracy, KEPT)
    assert accuracy.alarm is None
    assert accuracy.underestimated == MISSES_TO_ALARM


def test_a_new_process_is_judged_afresh() -> None:
    accuracy = story(OverlapAccuracy(), BROKEN, BROKEN, BROKEN, *[MISSED] * MISSES_TO_ALARM)
    accuracy.reset()
    assert accuracy.trusted
    assert accuracy.alarm is None
    assert accuracy.overestimated == 3


def test_two_routers_that_tell_each_other_find_out_together_what_one_would_that_got_all_answers() -> None:
    """Each of two gets every other answer; what changes nothing is not sent, and only the own answers are counted."""
    alone, pair = OverlapAccuracy(), (OverlapAccuracy(), OverlapAccuracy())
    sent = 0
    answers = [160] * 10 + [0, 0, 0] + [160] * 3 + [0, 160, 0, 160, 0] + [160] * 9
    for n, delivered in enumerate(answers):
        alone.observe(160, delivered, 16)
        pair[n % 2].observe(160, delivered, 16)
        if (finding := pair[n % 2].take_news()) is not None:
            pair[1 - n % 2].add(finding)
            sent += 1
        assert pair[n % 2].take_news() is None  # once
        assert pair[0].trusted == pair[1].trusted == alone.trusted, n
    assert sent < len(answers) - 12
    assert alone.overestimated == pair[0].overestimated + pair[1].overestimated == 6
    for _ in range(4):
        pair[0].observe(0, 160, 16)
        pair[1].observe(0, 160, 16)
        for one, other in (pair, pair[::-1]):
            finding = one.take_news()
            assert finding == "underestimated"
            other.add(finding)
    assert pair[0].alarm is not None
    assert pair[1].alarm is not None


@pytest.mark.parametrize(("between", "forgotten"), [(0, True), (PROOFS_WITHIN - 1, True), (PROOFS_WITHIN, False)])
def test_two_proofs_at_short_distance_make_the_index_worthless(between: int, forgotten: bool) -> None:
    accuracy = story(OverlapAccuracy(), BROKEN)
    assert not accuracy.add_proof(), "one may be an event that was lost"
    story(accuracy, *[KEPT] * between, BROKEN)
    assert accuracy.add_proof() == forgotten
    assert accuracy.contradictions == forgotten


def test_what_is_announced_after_the_index_was_forgotten_is_trusted() -> None:
    accuracy = story(OverlapAccuracy(), BROKEN, BROKEN, BROKEN)
    assert not accuracy.trusted
    accuracy.add_proof()
    assert accuracy.add_proof()
    assert accuracy.trusted
    assert story(accuracy, BROKEN, BROKEN).trusted, "judged afresh"
    assert not accuracy.add_proof()
