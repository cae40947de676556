"""GPU time, worked by hand: 5 ms for a prefill and 125 us per token, plus 1 ns per pair of tokens."""

from __future__ import annotations

import pytest

from router.features.tenants.gpu_time import estimate_gpu_s
from router.features.tenants.token_counts import NO_TOKENS, TokenCounts
from router.scheduling.policy.record import Attempt, PrefillRecord
from scorers.contract import Decode
from tests.router.telemetry.records import POLICY, a_record
from tests.suites.views import a_load, a_row, a_view

ALONE = a_view(a_row("a"))
BUSY = a_view(a_row("a", load=a_load(requests=3, elsewhere=4)))
PREFILL_MS = 5 + 0.125 * 1000 + 1000 * 500 / 1e6


def test_the_prompt_by_the_prefill_curve_and_the_answer_shared_by_the_batch() -> None:
    record = a_record(view=ALONE)
    record.attempts[0].duration_ms = 930.5
    assert estimate_gpu_s(record, TokenCounts(1000, 0, 50)) == pytest.approx(0.9305)
    shared = a_record(view=BUSY)
    shared.attempts[0].duration_ms = 930.5
    assert estimate_gpu_s(shared, TokenCounts(1000, 0, 50)) == pytest.approx((PREFILL_MS + 800 / 8) / 1e3)
    assert estimate_gpu_s(shared, TokenCounts(0, 1000, 50)) == pytest.approx(0.9305 / 8), "all of it was cached"


def test_a_learned_step_time_decides_where_there_is_one() -> None:
    row = a_row("a", load=a_load(requests=1))
    row = row._replace(speed=row.speed._replace(decode=Decode(10.0, 1000.0, 0.0, 5, 1.0)))
    record = a_record(view=a_view(row))
    record.attempts[0].duration_ms = 1e6
    assert estimate_gpu_s(record, TokenCounts(0, 0, 50)) == pytest.approx(50 * 12 / 2 / 1e3)


def test_a_prefill_half_has_its_own_speed() -> None:
    row = a_row("slow")
    slow = POLICY.decide(a_view(row._replace(speed=row.speed._replace(base_ms=500.0))))
    record = a_record()
    record.attempts = [Attempt(POLICY.decide(ALONE), None, None, prefill=PrefillRecord(slow, None, None, "ok"))]
    assert estimate_gpu_s(record, TokenCounts(1000, 0, 0)) == pytest.approx((PREFILL_MS + 495) / 1e3)


def test_what_no_engine_computed_took_no_time() -> None:
    assert estimate_gpu_s(a_record(attempts=[]), TokenCounts(10, 0, 0)) == 0
    assert estimate_gpu_s(a_record(), NO_TOKENS) == 0
