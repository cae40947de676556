"""What an operator sees of admission: the admin API's description, and the metrics."""

from __future__ import annotations

from router.features.admission.pending_request import PendingRequest
from router.features.admission.status import describe_admission, list_families
from tests.router.features.admission.test_model_admission import a_model_admission
from tests.router.features.samples import samples_of
from tests.router.scheduling.test_scheduler import House


def test_metrics_of_a_full_model_and_of_one_whose_capacity_is_unknown() -> None:
    house = House(count=1)
    full, unknown = a_model_admission(house), a_model_admission(house)
    unknown.model = "n"
    full.arrive(PendingRequest(b"a", 300))
    full.arrive(PendingRequest(b"b", 90))
    full.arrive(PendingRequest(b"c", 200))
    house.target("a/0").capacity_tokens = None
    assert samples_of(list_families([full, unknown])) == {
        ("warmroute_admission_waiting_requests", "m", "live"): 0,
        ("warmroute_admission_waiting_requests", "m", "parked"): 0,
        ("warmroute_admission_waiting_requests", "m", "again"): 0,
        ("warmroute_admission_waiting_requests", "m", "new"): 2,
        ("warmroute_admission_waiting_requests", "n", "live"): 0,
        ("warmroute_admission_waiting_requests", "n", "parked"): 0,
        ("warmroute_admission_waiting_requests", "n", "again"): 0,
        ("warmroute_admission_waiting_requests", "n", "new"): 0,
        ("warmroute_admission_live_sessions", "m"): 1,
        ("warmroute_admission_live_sessions", "n"): 0,
        ("warmroute_admission_context_tokens", "m"): 300,
        ("warmroute_admission_context_tokens", "n"): 0,
        ("warmroute_admission_capacity_tokens", "m"): 400,
    }, "an unknown capacity is no sample"


def test_who_waits_is_described_in_order() -> None:
    house = House(count=1)
    admission = a_model_admission(house)
    admission.arrive(PendingRequest(b"a", 390))
    for session, tokens in ((b"b", 50), (b"c", 60)):
        admission.arrive(PendingRequest(session, tokens))
        house.clock.advance(1.0)
    described = describe_admission(admission, house.clock.now())
    waiting = [(one["position"], one["queue"], one["prompt_tokens"], one["waited_s"]) for one in described["waiting"]]
    assert waiting == [(1, "new", 50, 2.0), (2, "new", 60, 1.0)]
    assert (described["model"], described["capacity_tokens"], described["queued"]["new"]) == ("m", 400, 2)
