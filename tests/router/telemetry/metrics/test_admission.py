"""The door, as metrics."""

from __future__ import annotations

from router.telemetry.metrics.admission import ModelAdmissionState, gate_families


def test_who_waits_who_is_live_and_what_fits() -> None:
    gates = [
        ModelAdmissionState("m", {"parked": 1, "new": 2}, 3.5, 900.0, 1000),
        ModelAdmissionState("n", {"new": 0}, 0.0, 0.0, None),
    ]
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in gate_families(gates)
        for sample in family.samples
    }
    assert samples == {
        ("warmroute_admission_waiting_requests", "m", "parked"): 1,
        ("warmroute_admission_waiting_requests", "m", "new"): 2,
        ("warmroute_admission_waiting_requests", "n", "new"): 0,
        ("warmroute_admission_live_sessions", "m"): 3.5,
        ("warmroute_admission_live_sessions", "n"): 0,
        ("warmroute_admission_context_tokens", "m"): 900,
        ("warmroute_admission_context_tokens", "n"): 0,
        ("warmroute_admission_capacity_tokens", "m"): 1000,
    }, "an unknown capacity is no sample"


def test_without_a_door_there_are_names_but_no_samples() -> None:
    assert [len(family.samples) for family in gate_families(())] == [0] * 4
