"""Lines of the table: what counts as agreement, and what is only told."""

from __future__ import annotations

from tests.agreement.row import Line, around, factor, order, ratio


def test_agreement_is_within_a_share_or_a_factor() -> None:
    assert around("x", 6.4, 4.81, 0.25).within  # 6.4 x 0.75 = 4.8
    assert not around("x", 6.4, 4.7, 0.25).within
    assert factor("x", 3.8, 5.6, 1.5).within  # 3.8 x 1.5 = 5.7
    assert factor("x", 3.8, 2.6, 1.5).within  # 3.8 / 1.5 = 2.53
    assert not factor("x", 3.8, 5.8, 1.5).within


def test_a_line_without_a_bar_is_not_judged_and_what_is_missing_is_missed() -> None:
    assert Line("x", "1", 7.0).within is None
    assert around("x", 1.0, None, 0.5).within is False


def test_an_order_is_strict_and_needs_every_value() -> None:
    assert order("x", 1.0, 2.0, 3.0).within
    assert not order("x", 1.0, 1.0).within
    assert not order("x", 1.0, None, 3.0).within


def test_a_ratio_of_nothing_is_unknown() -> None:
    assert ratio(6.0, 2.0) == 3.0
    assert ratio(6.0, 0.0) is None
    assert ratio(None, 2.0) is None
