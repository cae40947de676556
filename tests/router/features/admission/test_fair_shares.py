"""Fair shares in the controller: who waits for an engine, who for memory, and whose deadline is lost."""

from __future__ import annotations

from router.features.admission.controller import AdmissionController
from router.features.admission.verdicts import Admitted, Arrival, ComputedPrompt, PrefillTimes, Queued
from scorers.admission.contract import Admission, AdmissionRule, Claim, FleetMemory, TargetLoad, TargetMemory
from scorers.admission.fit import Fit
from scorers.admission.none import NoAdmission
from scorers.admission.saturation import Saturation

MAX_WAIT_S = 100.0


class Fleet:
    """One engine of `capacity_tokens` whose work is set by hand."""

    def __init__(self, rule: AdmissionRule | None = None, capacity_tokens: int = 1000) -> None:
        self.controller = AdmissionController(rule or Saturation(), MAX_WAIT_S, 300.0, tenants=True)
        self.capacity_tokens = capacity_tokens
        self.has()

    def has(self, prefilling: int = 0, left_ms: float = 0.0, live_tokens: int = 0, waiting: int | None = 0) -> None:
        load = TargetLoad("e/0", prefilling, left_ms, 10.0, live_tokens, self.capacity_tokens, waiting)
        memory = (TargetMemory("e/0", self.capacity_tokens),)
        self.controller.set_fleet(FleetMemory(self.capacity_tokens, memory, 1.0, [load]))

    def asks(
        self,
        tenant: str,
        session: str = "s",
        tokens: int = 100,
        now: float = 0.0,
        deadline_s: float | None = None,
        prefill_s: float | None = None,
    ) -> Admitted | Queued:
        claim = Claim(tenant, 1.0, 0, deadline_s)
        times = None if prefill_s is None else PrefillTimes(prefill_s, prefill_s)
        arrival = Arrival(f"{tenant}/{session}".encode(), tokens, None, claim, (), times)
        return self.controller.arrive(arrival, now)

    def begins(self, now: float = 0.0) -> list[str | None]:
        return [one.claim.tenant for one in self.controller.release_waiting(now).admitted]


def placed(fleet: Fleet, admission: Admission, now: float = 0.0) -> None:
    fleet.controller.on_placed(admission, "e/0", now)


def test_nobody_waits_for_an_engine_that_has_room() -> None:
    fleet = Fleet()
    for number in range(3):
        verdict = fleet.asks("a", str(number))
        assert isinstance(verdict, Admitted)
        placed(fleet, verdict.admission)


def test_what_has_begun_and_is_booked_nowhere_takes_the_room() -> None:
    fleet = Fleet()
    first = fleet.asks("a")
    assert isinstance(first, Admitted)
    assert isinstance(fleet.asks("b"), Queued)
    assert fleet.begins() == []
    placed(fleet, first.admission)
    assert fleet.begins() == ["b"]


def test_while_engines_are_saturated_tenants_take_turns() -> None:
    fleet = Fleet()
    fleet.has(prefilling=1, left_ms=500.0)
    for number in range(4):
        assert isinstance(fleet.asks("greedy", str(number)), Queued)
    assert isinstance(fleet.asks("modest"), Queued)
    assert fleet.begins() == []
    assert fleet.controller.next_s == 0.25, "the engine reports by then"
    order = []
    for _ in range(5):
        fleet.has()
        released = fleet.controller.release_waiting(1.0)
        (one,) = released.admitted
        placed(fleet, one)
        order.append(one.claim.tenant)
    assert order.index("modest") <= 1


def test_an_engine_gets_the_next_prompt_when_the_last_is_nearly_done() -> None:
    """10 ms of the refill before the end, so 90 of 100 ms from now."""
    fleet = Fleet()
    fleet.has(prefilling=1, left_ms=100.0)
    assert isinstance(fleet.asks("a"), Queued)
    fleet.begins()
    assert fleet.controller.next_s == 0.09
    fleet.has(prefilling=1, left_ms=10.0)
    assert fleet.begins(0.09) == ["a"]


def test_a_prompt_that_its_memory_does_not_hold_waits() -> None:
    fleet = Fleet()
    fleet.has(live_tokens=950)
    assert isinstance(fleet.asks("a"), Queued)
    fleet.has(live_tokens=900)
    assert fleet.begins() == ["a"]


def test_what_cannot_meet_its_deadline_any_more_is_refused_and_counts_no_longer() -> None:
    """Due at 2 s, and 0.5 s to compute: at 1.5 s it is too late."""
    fleet = Fleet()
    fleet.has(prefilling=1, left_ms=5_000.0)
    held = fleet.asks("a", deadline_s=2.0, prefill_s=0.5)
    assert isinstance(held, Queued)
    assert fleet.controller.release_waiting(1.0).refused == ()
    assert fleet.controller.next_s == 1.25
    (refused,) = fleet.controller.release_waiting(1.5).refused
    assert (refused.admission, refused.reason) == (held.admission, "deadline")
    state = fleet.controller.state(1.5)
    assert (sum(state.queued.values()), state.known, state.shares) == (0, 0, ())


def test_prefills_that_take_longer_than_estimated_make_the_last_moment_earlier() -> None:
    fleet = Fleet()
    fleet.has(prefilling=1, left_ms=5_000.0)
    held = fleet.asks("a", deadline_s=9.0, prefill_s=1.0)
    fleet.has()
    fleet.controller.release_waiting(1.0)
    placed(fleet, held.admission)
    fleet.controller.on_first_token(held.admission, 4.0)
    assert fleet.controller.fair is not None
    assert fleet.controller.fair.deadlines.slowdown == 1.0 + 0.05 * 2.0


def test_a_turn_that_fits_keeps_its_place_in_memory_while_it_waits_for_an_engine() -> None:
    """1,000 tokens hold the session of 600 that waits, and so not a new one of 500."""
    fleet = Fleet(Fit(idle_below=0))
    first = fleet.asks("a", tokens=600)
    placed(fleet, first.admission)
    fleet.controller.on_answer(first.admission, ComputedPrompt(600, 600, 600), 0.0)
    fleet.has(prefilling=1, left_ms=500.0)
    turn = fleet.asks("a", tokens=600)
    assert isinstance(turn, Queued)
    assert turn.admission.queue == "live"
    assert isinstance(fleet.asks("b", tokens=500), Queued)
    assert fleet.controller.state(0.0).queued == {"live": 1, "parked": 0, "again": 0, "new": 1}
    fleet.has()
    assert fleet.begins() == ["a"]
    placed(fleet, turn.admission)
    assert fleet.begins() == [], "b fits when a has gone"
    fleet.controller.on_leave(turn.admission, 1.0)
    fleet.controller.state(400.0)
    assert fleet.begins(400.0) == [] or fleet.controller.state(400.0).queued["new"] == 0


def test_without_tenants_fit_is_first_come_first_served() -> None:
    controller = AdmissionController(Fit(), MAX_WAIT_S, 300.0)
    assert controller.fair is None
    controller.switch(Saturation(), MAX_WAIT_S, 300.0, 0.0)
    assert controller.fair is not None


def test_requests_that_wait_are_handed_over_when_shares_begin_and_end() -> None:
    fleet = Fleet()
    fleet.has(prefilling=1, left_ms=500.0)
    fleet.asks("a")
    fleet.asks("b")
    fleet.controller.switch(NoAdmission(), MAX_WAIT_S, 300.0, 0.0)
    assert fleet.begins() == ["a", "b"]
    fleet.controller.switch(Saturation(), MAX_WAIT_S, 300.0, 0.0)
    assert fleet.controller.fair is not None
    assert len(fleet.controller.fair.order) == 0


def load_of(target: str, **changed: object) -> TargetLoad:
    return TargetLoad(target, 0, 0.0, 10.0, 0, 1000, 0)._replace(**changed)


def test_what_begins_is_told_which_engines_have_no_room() -> None:
    fleet = Fleet()
    fleet.has(prefilling=1, left_ms=500.0)
    held = fleet.asks("a").admission
    busy = load_of("e/0", prefilling=1, left_ms=500.0)
    fleet.controller.set_fleet(FleetMemory(3000, (), 1.0, [busy, load_of("e/1"), load_of("e/2", live_tokens=950)]))
    assert fleet.begins() == ["a"]
    assert held.full == {"e/0", "e/2"}


def test_some_memory_is_left_to_tenants_that_had_less_than_their_share() -> None:
    """Of 1,000 tokens 20 are left."""
    fleet = Fleet()
    for tenant, tokens in (("modest", 100), ("greedy", 400), ("greedy", 400)):
        placed(fleet, fleet.asks(tenant, tokens=tokens).admission)
    fleet.has(live_tokens=890)
    assert isinstance(fleet.asks("greedy", "2", tokens=100), Queued)
    assert fleet.begins() == [], "110 tokens are free, and it needs 120"
    assert isinstance(fleet.asks("modest", "2", tokens=100), Queued)
    assert fleet.begins() == ["modest"]


def test_a_tenant_alone_may_use_all_memory() -> None:
    fleet = Fleet()
    placed(fleet, fleet.asks("a").admission)
    fleet.has(live_tokens=900)
    assert isinstance(fleet.asks("a", "2"), Admitted)


def test_a_prompt_that_is_held_needs_less_room_and_costs_less() -> None:
    fleet = Fleet()
    fleet.has(live_tokens=950)
    arrival = Arrival(b"a/s", 500, 480, Claim("a"), ("e/0",), PrefillTimes(0.1, 1.0))
    verdict = fleet.controller.arrive(arrival, 0.0)
    assert isinstance(verdict, Admitted)
    assert fleet.controller.fair is not None
    (share,) = fleet.controller.fair.order.shares()
    assert share.charged_tokens == 20
    fleet.controller.on_placed(verdict.admission, "e/0", 0.0, 300)
    (share,) = fleet.controller.fair.order.shares()
    assert share.charged_tokens == 200
