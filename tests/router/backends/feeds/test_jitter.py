"""Even spreading, without dice."""

from __future__ import annotations

import pytest

from router.backends.feeds.jitter import Jitter


@pytest.mark.parametrize("count", [2, 5, 13, 200])
def test_any_number_is_spread_evenly(count: int) -> None:
    stagger = Jitter()
    shares = sorted(stagger.share() for _ in range(count))
    gaps = [b - a for a, b in zip(shares, [*shares[1:], shares[0] + 1], strict=True)]
    assert all(0 <= share < 1 for share in shares)
    assert max(gaps) < 2.7 / count  # three-distance theorem: few sizes of gaps, none large


def test_pauses_stay_within_a_tenth() -> None:
    stagger = Jitter()
    pauses = [stagger.around(10.0) for _ in range(100)]
    assert min(pauses) >= 9.0
    assert max(pauses) <= 11.0
    assert len({round(pause, 6) for pause in pauses}) == 100
