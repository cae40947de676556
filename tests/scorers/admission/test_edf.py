"""llm-d's EDF: the earliest deadline first while the mean of its saturation is below 1."""

from __future__ import annotations

from router.features.admission.controller import AdmissionController
from router.features.admission.verdicts import Admitted, Arrival, Queued
from scorers.admission.contract import Claim, FleetMemory, TargetLoad
from scorers.admission.edf import Edf


def a_fleet(*waiting: int, kv_usage: float = 0.0) -> FleetMemory:
    return FleetMemory(loads=[TargetLoad("e", 0, 0.0, 0.0, 0, None, number, kv_usage) for number in waiting])


def test_the_earliest_deadline_begins_first_and_one_without_comes_last() -> None:
    controller = AdmissionController(Edf(), 100.0, 300.0)
    controller.set_fleet(a_fleet(5, 5))
    for number, deadline_s in enumerate((None, 9.0, 3.0)):
        claim = Claim(deadline_s=deadline_s)
        assert isinstance(controller.arrive(Arrival(b"%d" % number, 10, None, claim), 0.0), Queued)
    assert controller.next_s == 0.25
    controller.set_fleet(a_fleet(4, 4))
    admitted = controller.release_waiting(1.0).admitted
    assert [one.claim.deadline_s for one in admitted] == [3.0, 9.0, None]


def test_saturation_is_the_mean_of_queues_and_memory() -> None:
    """(5 / 5 + 4 / 5) / 2 = 0.9; with 0.8 of the memory in use each is 1 at least."""
    for fleet, begins in [(a_fleet(5, 4), True), (a_fleet(5, 5), False), (a_fleet(0, 0, kv_usage=0.8), False)]:
        controller = AdmissionController(Edf(), 100.0, 300.0)
        controller.set_fleet(fleet)
        assert isinstance(controller.arrive(Arrival(b"a", 10), 0.0), Admitted) == begins
