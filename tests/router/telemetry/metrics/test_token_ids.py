"""Handing as metrics: a sample for everybody who was asked, and counters with and without ids."""

from __future__ import annotations

from router.telemetry.metrics.token_ids import PassthroughState, handing_families


def samples(now: PassthroughState) -> dict[tuple[str, ...], float]:
    found = [sample for family in handing_families(now) for sample in family.samples]
    return {(one.name, *one.labels.values()): one.value for one in found}


def test_who_takes_ids_and_what_became_of_prompts() -> None:
    assert samples(PassthroughState({"a": True, "b": False}, {"m": 7}, {"check": 2})) == {
        ("warmroute_token_id_passthrough_supported", "a"): 1,
        ("warmroute_token_id_passthrough_supported", "b"): 0,
        ("warmroute_token_id_passthrough_prompts_total", "m"): 7,
        ("warmroute_token_id_passthrough_skipped_total", "check"): 2,
    }


def test_every_metric_is_there_before_anything_happened() -> None:
    assert samples(PassthroughState()) == {}
    assert [family.name for family in handing_families(PassthroughState())] == [
        "warmroute_token_id_passthrough_supported",
        "warmroute_token_id_passthrough_prompts",
        "warmroute_token_id_passthrough_skipped",
    ]
