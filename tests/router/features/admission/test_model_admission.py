"""Model admission over a real scheduler of two instances with 400 tokens each."""

from __future__ import annotations

from router.config import schema
from router.features.admission.controller import AdmissionController
from router.features.admission.model_admission import MEASURE_INTERVAL_S, ModelAdmission
from router.features.admission.pending_request import PendingRequest
from router.features.admission.verdicts import Admitted, ComputedPrompt, Queued
from scorers.admission.fit import Fit
from scorers.admission.saturation import Saturation
from tests.router.scheduling.test_scheduler import IDS, KNOWN, House

NIXL = {"transfer": {"protocol": "nixl"}}


def a_model_admission(house: House, share: float = 1.0) -> ModelAdmission:
    return ModelAdmission(
        "m",
        AdmissionController(Fit(), 60.0, 300.0),
        house.core,
        house.clock,
        share,
    )


def test_the_capacity_is_that_of_all_healthy_instances_times_the_share() -> None:
    house = House(count=2)
    admission_of_m = a_model_admission(house)
    admission_of_m.arrive(PendingRequest(b"s", 10))
    assert (admission_of_m.capacity_tokens, len(admission_of_m.targets)) == (800, 2)
    house.core.drain("a", True)
    admission_of_m.release_waiting()
    assert admission_of_m.capacity_tokens == 800, "measured a moment ago"
    house.clock.advance(MEASURE_INTERVAL_S + 0.1)
    admission_of_m.release_waiting()
    assert (admission_of_m.capacity_tokens, len(admission_of_m.targets)) == (400, 1)
    fourth = a_model_admission(house, share=0.25)
    fourth.release_waiting()
    assert fourth.capacity_tokens == 100


def test_everything_is_admitted_while_no_instance_has_reported_its_cache_size() -> None:
    house = House(count=1)
    house.target("a/0").capacity_tokens = None
    admission_of_m = a_model_admission(house)
    assert admission_of_m.capacity_tokens is None
    for number in range(5):
        assert isinstance(admission_of_m.arrive(PendingRequest(b"%d" % number, 10**6)), Admitted)


def test_a_turn_is_parked_where_no_instance_holds_its_context_and_passes_where_one_does() -> None:
    """Of 40 tokens 36 can be used; a full house, since 390 + 40 > 400."""
    for held, parked in [(True, False), (False, True)]:
        house = House(count=1)
        if held:
            house.stored("a/0")
        admission_of_m = a_model_admission(house)
        first = admission_of_m.arrive(PendingRequest(b"s", len(IDS), KNOWN))
        admission_of_m.on_answer(first.admission, ComputedPrompt(len(IDS), len(IDS)))
        assert isinstance(admission_of_m.arrive(PendingRequest(b"big", 360)), Admitted)
        big = admission_of_m.arrive(PendingRequest(b"big", 390))
        assert isinstance(big, Admitted)
        assert isinstance(admission_of_m.arrive(PendingRequest(b"s", len(IDS), KNOWN)), Queued) == parked
        admission_of_m.on_leave(big.admission)


def test_what_some_instance_does_not_tell_is_unknown_and_passes() -> None:
    house = House(count=1)
    admission_of_m = a_model_admission(house)
    first = admission_of_m.arrive(PendingRequest(b"s", len(IDS), KNOWN))
    admission_of_m.on_answer(first.admission, ComputedPrompt(len(IDS), len(IDS)))
    assert isinstance(admission_of_m.arrive(PendingRequest(b"big", 360)), Admitted)
    assert isinstance(admission_of_m.arrive(PendingRequest(b"new", 1)), Queued), "it is full"
    assert isinstance(admission_of_m.arrive(PendingRequest(b"s", len(IDS))), Admitted)


def test_where_prompts_are_computed_by_other_instances_nobody_waits_for_those_that_answer() -> None:
    for pairs in (False, True):
        house = House(count=2)
        if pairs:
            house.core.peers.add(schema.InstanceConfig.model_validate({"url": "http://p", "role": "prefill"} | NIXL))
        for id in ("a/0", "b/0"):
            house.target(id).load_book.book(200_000, 200_000)
        admission_of_m = ModelAdmission("m", AdmissionController(Saturation(), 60.0, 300.0), house.core, house.clock)
        assert isinstance(admission_of_m.arrive(PendingRequest(b"s", 10)), Admitted) == pairs
