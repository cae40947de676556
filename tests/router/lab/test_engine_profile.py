import pytest

from router.lab.engine_profile import EngineProfile

PROFILE = EngineProfile(
    name="p",
    kv_tokens=1000,
    kv_bytes_per_token=1.0,
    us_per_token=100.0,
    ns_per_pair=10.0,
    us_per_decode=50.0,
    weights_ms=2.0,
    ns_per_context_token=100.0,
    step_ms=1.0,
    batched_tokens=100,
)


def test_a_step_takes_what_computing_or_memory_takes_whichever_is_longer() -> None:
    # computing: 10 x 100 us + 1,000 pairs x 10 ns + 2 x 50 us = 1.11 ms; memory: 2 ms + 5,000 x 100 ns = 2.5 ms
    assert PROFILE.step_s(10, 1000, 2, 5000) == pytest.approx(0.0035)
    assert PROFILE.step_s(100, 1000, 2, 5000) == pytest.approx(0.001 + 0.01011)


def test_a_prefill_goes_by_chunks_and_attends_to_what_is_cached() -> None:
    # 100 then 50 tokens after 200: pairs 100 x 250 + 50 x 325; memory is far below computing
    computing_us = 150 * 100 + (25_000 + 16_250) * 0.01
    assert PROFILE.prefill_s(150, 200) == pytest.approx(0.002 + computing_us / 1e6)
    assert PROFILE.prefill_s(0, 200) == 0
