"""What is remembered, as metrics."""

from __future__ import annotations

from router.telemetry.metrics.tokenization import ModelTokenCounts, PrefixCacheState, remembered_families


def test_bytes_of_all_and_tokens_per_model() -> None:
    now = PrefixCacheState(700, 1000, 3, {"m": ModelTokenCounts(90, 10, True), "n": ModelTokenCounts(0, 5, False)})
    samples = {
        (sample.name, sample.labels.get("model")): sample.value
        for family in remembered_families(now)
        for sample in family.samples
    }
    assert samples == {
        ("warmroute_memory_bytes", None): 700,
        ("warmroute_memory_limit_bytes", None): 1000,
        ("warmroute_memory_evictions_total", None): 3,
        ("warmroute_remembered_tokens_total", "m"): 90,
        ("warmroute_tokenised_tokens_total", "m"): 10,
        ("warmroute_tokenizer_incremental", "m"): 1,
        ("warmroute_remembered_tokens_total", "n"): 0,
        ("warmroute_tokenised_tokens_total", "n"): 5,
        ("warmroute_tokenizer_incremental", "n"): 0,
    }


def test_without_anything_to_tell_there_are_names_but_no_samples() -> None:
    assert [len(family.samples) for family in remembered_families(None)] == [0] * 6
