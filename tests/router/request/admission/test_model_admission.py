"""A gate over a real core: how much memory it sees, and what it finds of a prompt. Two instances of 400 tokens."""

from __future__ import annotations

from router.config.sections import admission
from router.request.admission.controller import AdmissionController, Admitted, Queued
from router.request.admission.model_admission import MEASURED_EVERY_S, ModelAdmission
from tests.router.scheduling.test_scheduler import IDS, KNOWN, House


def a_gate(house: House, share: float = 1.0) -> ModelAdmission:
    return ModelAdmission(
        "m",
        AdmissionController(admission.AdmissionConfig(enabled=True, max_wait_s=60.0)),
        house.core,
        house.clock,
        share,
    )


def test_the_memory_is_that_of_all_who_are_well_and_this_doors_share_of_it() -> None:
    house = House(count=2)
    gate = a_gate(house)
    gate.arrives(b"s", 10, None)
    assert (gate.capacity_tokens, gate.targets) == (800, 2)
    house.core.drain("a", True)
    gate.look()
    assert gate.capacity_tokens == 800, "measured a moment ago"
    house.clock.advance(MEASURED_EVERY_S + 0.1)
    gate.look()
    assert (gate.capacity_tokens, gate.targets) == (400, 1)
    fourth = a_gate(house, share=0.25)
    fourth.look()
    assert fourth.capacity_tokens == 100


def test_where_no_instance_has_told_its_size_everybody_passes() -> None:
    house = House(count=1)
    house.target("a/0").capacity_tokens = None
    gate = a_gate(house)
    assert gate.capacity_tokens is None
    for number in range(5):
        assert isinstance(gate.arrives(b"%d" % number, 10**6, None), Admitted)


def test_a_turn_is_parked_where_no_instance_holds_its_context_and_passes_where_one_does() -> None:
    """Of 40 tokens 36 can be used; a full house, since 390 + 40 > 400."""
    for held, parked in [(True, False), (False, True)]:
        house = House(count=1)
        if held:
            house.stored("a/0")
        gate = a_gate(house)
        first = gate.arrives(b"s", len(IDS), KNOWN)
        gate.answered(first.turn, len(IDS), len(IDS))
        assert isinstance(gate.arrives(b"big", 360, None), Admitted)
        big = gate.arrives(b"big", 390, None)
        assert isinstance(big, Admitted)
        assert isinstance(gate.arrives(b"s", len(IDS), KNOWN), Queued) == parked
        gate.left(big.turn)


def test_what_some_instance_does_not_tell_is_unknown_and_passes() -> None:
    house = House(count=1)
    gate = a_gate(house)
    first = gate.arrives(b"s", len(IDS), KNOWN)
    gate.answered(first.turn, len(IDS), len(IDS))
    assert isinstance(gate.arrives(b"big", 360, None), Admitted)
    assert isinstance(gate.arrives(b"new", 1, None), Queued), "it is full"
    assert isinstance(gate.arrives(b"s", len(IDS), None), Admitted)
