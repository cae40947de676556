"""The fleet's states and who may get a request, as stories."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.config import schema
from router.fleet.breaker import Verdict
from router.fleet.engine_facts import Gauges, ModelCard
from router.fleet.engine_limits import MAX_RANKS
from router.fleet.fleet import NO_CHANGES, DuplicateInstance, Fleet
from router.fleet.instance import Instance, InstanceState, ServedModel, Target
from router.kvcache.events import TargetId

M = ModelCard("m", "/models/m", None, 8192)
ALIAS = ModelCard("m-alias", "/models/m", None, 8192)
LORA = ModelCard("lora-a", "/loras/a", "m", None)
OTHER = ModelCard("other", "/models/other", None, 4096)


def page(running: int = 0, waiting: int = 0) -> Gauges:
    return Gauges(running, waiting, 0.1, 16, 1600, None, None)


def fleet_of(*names: str, cards: Sequence[ModelCard] = (M,), ranks: Sequence[int] = (0,)) -> Fleet:
    fleet = Fleet(schema.FleetConfig())
    for name in names:
        assert isinstance(fleet.join(schema.InstanceConfig(url=f"http://{name}:8000", name=name)), Instance)
        fleet.mark_ready(name, cards, ranks)
    return fleet


def instance(fleet: Fleet, name: str) -> Instance:
    found = fleet.get(name)
    assert found is not None
    return found


def target(fleet: Fleet, id: str) -> Target:
    found = fleet.target(TargetId(id))
    assert found is not None
    return found


def ids(fleet: Fleet, model: str = "m", excluding: Sequence[str] = (), now: float = 0.0) -> list[str]:
    return [target.id for target in fleet.candidates(model, set(excluding), now)]


def test_the_longest_context_of_a_model_counts() -> None:
    fleet = fleet_of("a", cards=[M, LORA])
    assert fleet.context_tokens("m") == 8192
    fleet.join(schema.InstanceConfig(url="http://b:8000", name="b"))
    fleet.mark_ready("b", [M._replace(max_model_len=32_768), OTHER], (0,))
    assert (fleet.context_tokens("m"), fleet.context_tokens("other")) == (32_768, 4096)
    fleet.set_models("b", [ALIAS._replace(root="/models/other"), OTHER._replace(max_model_len=None)])
    assert fleet.context_tokens("m") == 8192
    assert fleet.context_tokens("other") is None
    assert fleet.context_tokens("m-alias") == 8192


def test_an_instance_without_a_name_is_its_host_and_port() -> None:
    joined = Fleet(schema.FleetConfig()).join(schema.InstanceConfig(url="https://engine.local"))
    assert isinstance(joined, Instance)
    assert joined.id == "engine.local:443"


def test_a_second_of_the_same_id_does_not_join() -> None:
    fleet = fleet_of("a")
    first = instance(fleet, "a")
    assert fleet.join(schema.InstanceConfig(url="http://elsewhere:1", name="a")) == DuplicateInstance(
        "a", "http://elsewhere:1"
    )
    assert list(fleet) == [first]


def test_joining_gets_nothing_until_it_told_what_it_serves() -> None:
    fleet = Fleet(schema.FleetConfig())
    fleet.join(schema.InstanceConfig(url="http://a:1", name="a"))
    assert instance(fleet, "a").state is InstanceState.JOINING
    assert fleet.resolve("m") is None
    assert ids(fleet) == []
    assert fleet.record_probe_success("a", 0.0), "asks for its cards"
    fleet.mark_ready("a", [M], [])
    assert instance(fleet, "a").state is InstanceState.READY
    assert ids(fleet) == ["a/0"]
    assert not fleet.record_probe_success("a", 1.0)


def test_failures_in_a_row_bring_it_down_and_an_answer_through_joining_back() -> None:
    fleet = fleet_of("a", "b")
    assert not fleet.record_probe_failure("a", 0.0)
    assert not fleet.record_probe_success("a", 1.0)
    assert not fleet.record_probe_failure("a", 2.0), "not in a row"
    assert instance(fleet, "a").state is InstanceState.READY
    assert fleet.record_probe_failure("a", 3.0)
    assert instance(fleet, "a").state is InstanceState.DOWN
    assert not fleet.record_probe_failure("a", 4.0), "told once"
    assert ids(fleet) == ["b/0"]
    assert fleet.record_probe_success("a", 5.0)
    assert instance(fleet, "a").state is InstanceState.JOINING
    assert ids(fleet) == ["b/0"]
    fleet.mark_ready("a", [OTHER], [0])
    assert ids(fleet) == ["b/0"]
    assert ids(fleet, "other") == ["a/0"]


def test_a_model_whose_instances_are_all_down_is_known_but_has_no_candidates() -> None:
    fleet = fleet_of("a")
    fleet.record_probe_failure("a", 0.0)
    fleet.record_probe_failure("a", 0.0)
    assert fleet.resolve("m") == ServedModel("m", None)
    assert ids(fleet) == []
    assert fleet.models() == []


def test_one_that_never_answered_is_down_too() -> None:
    fleet = Fleet(schema.FleetConfig())
    fleet.join(schema.InstanceConfig(url="http://a:1", name="a"))
    fleet.record_probe_failure("a", 0.0)
    assert fleet.record_probe_failure("a", 0.0)
    assert instance(fleet, "a").state is InstanceState.DOWN
    assert fleet.record_probe_success("a", 1.0)


def bring_down(fleet: Fleet, name: str, *late: bool) -> None:
    """Fail as many probes."""
    for each in late:
        fleet.begin_probe(name)
        fleet.record_probe_failure(name, 0.0, late=each)


def test_where_no_other_is_ready_those_down_by_late_probes_alone_are_served() -> None:
    fleet = fleet_of("a", "b", "c")
    bring_down(fleet, "a", True, True)
    assert ids(fleet) == ["b/0", "c/0"], "there are others"
    bring_down(fleet, "b", False, True)
    bring_down(fleet, "c", True, True)
    assert ids(fleet) == ["a/0", "c/0"]
    assert [each.id for each in fleet if fleet.in_panic(each)] == ["a", "c"]
    assert fleet.can_answer("m")
    assert [card.id for card in fleet.models()] == ["m"]
    assert fleet.nominal_speed("m", 0.0) is not None
    fleet.apply_metrics("a", {0: page(3)}, 1.0)
    assert target(fleet, "a/0").load_book.gauges.running == 3
    fleet.apply_metrics("b", {0: page(3)}, 1.0)
    assert target(fleet, "b/0").load_book.gauges.running is None
    fleet.drain("c")
    assert ids(fleet) == ["a/0"]
    fleet.drain("c", False)
    fleet.set_accepting("a", False)
    assert ids(fleet) == ["c/0"]
    fleet.set_accepting("a", True)
    bring_down(fleet, "a", False)
    assert ids(fleet) == ["c/0"], "it was not reached meanwhile"
    bring_down(fleet, "a", True, True)
    assert ids(fleet) == ["c/0"], "so it may be another process"
    assert fleet.record_probe_success("c", 5.0)
    assert ids(fleet) == ["c/0"], "while it is asked what it serves"
    bring_down(fleet, "c", True, True)
    assert ids(fleet) == ["c/0"]
    fleet.mark_ready("b", [M], [0])
    assert ids(fleet) == ["b/0"]
    assert not any(fleet.in_panic(each) for each in fleet)


def test_one_that_never_was_ready_and_one_that_was_down_otherwise_are_not_served() -> None:
    fleet = Fleet(schema.FleetConfig())
    fleet.join(schema.InstanceConfig(url="http://a:1", name="a"))
    bring_down(fleet, "a", True, True)
    assert not instance(fleet, "a").may_serve
    fleet.mark_ready("a", [M], [0])
    bring_down(fleet, "a", False, False, True)
    assert ids(fleet) == []


def test_an_adapter_that_only_a_slow_engine_has_is_served_there() -> None:
    fleet = fleet_of("a", "b")
    fleet.set_models("a", [M, LORA])
    bring_down(fleet, "a", True, True)
    assert (ids(fleet, "lora-a"), ids(fleet)) == (["a/0"], ["b/0"])


def test_slow_engines_that_answer_join_prefill_engines_that_are_ready() -> None:
    fleet = Fleet(schema.FleetConfig())
    transfer = schema.TransferProtocol(protocol="nixl")
    for name, role in (("p", "prefill"), ("q", "prefill"), ("d", "decode"), ("e", "decode")):
        fleet.join(schema.InstanceConfig(url=f"http://{name}:1", name=name, role=role, transfer=transfer))  # type: ignore[arg-type]
        fleet.mark_ready(name, [M], [0])
    bring_down(fleet, "q", True, True)
    bring_down(fleet, "d", True, True)
    assert ids(fleet) == ["p/0", "e/0"], "a prompt can do without the prefill engines"
    bring_down(fleet, "e", True, True)
    assert ids(fleet) == ["p/0", "q/0", "d/0", "e/0"]


def test_a_late_probe_of_one_that_delivers_is_no_failure() -> None:
    fleet = fleet_of("a")
    for _ in range(5):
        fleet.begin_probe("a")
        instance(fleet, "a").delivered = True
        assert not fleet.record_probe_failure("a", 0.0, late=True)
    assert instance(fleet, "a").failures == 0
    bring_down(fleet, "a", True)
    assert instance(fleet, "a").failures == 1, "nothing since the probe began"
    instance(fleet, "a").delivered = True
    assert fleet.record_probe_failure("a", 0.0, late=False), "it said itself that it is not well"
    assert not instance(fleet, "a").is_slow


def test_draining_finishes_what_it_has_and_outlives_a_restart() -> None:
    fleet = fleet_of("a", "b")
    booking = target(fleet, "a/0").book(10, 10)
    assert fleet.drain("a")
    assert instance(fleet, "a").state is InstanceState.DRAINING
    assert ids(fleet) == ["b/0"]
    assert instance(fleet, "a").requests == 1
    assert booking.release()
    assert instance(fleet, "a").state is InstanceState.DRAINED
    fleet.record_probe_failure("a", 0.0)
    fleet.record_probe_failure("a", 0.0)
    assert instance(fleet, "a").state is InstanceState.DOWN
    fleet.record_probe_success("a", 1.0)
    fleet.mark_ready("a", [M], [0])
    assert instance(fleet, "a").state is InstanceState.DRAINED
    assert fleet.drain("a", False)
    assert ids(fleet) == ["a/0", "b/0"]


def test_nobody_of_that_name() -> None:
    fleet = Fleet(schema.FleetConfig())
    assert not fleet.drain("x")
    assert not fleet.drain("x", False)
    assert not fleet.record_probe_success("x", 0.0)
    assert not fleet.record_probe_failure("x", 0.0)
    fleet.leave("x")
    fleet.mark_ready("x", [M], [0])
    fleet.set_models("x", [M])
    fleet.begin_poll("x")
    assert fleet.apply_metrics("x", {0: page()}, 0.0) == NO_CHANGES
    assert fleet.get("x") is None
    assert fleet.target(TargetId("x/0")) is None


def test_leaving_forgets_it_and_its_bookings_still_come_back() -> None:
    fleet = fleet_of("a", "b", cards=[M, LORA])
    gone = target(fleet, "a/0")
    booking = gone.book(5, 10)
    fleet.leave("a")
    assert ids(fleet) == ["b/0"]
    assert fleet.target(TargetId("a/0")) is None
    assert booking.release()
    assert gone.load_book.requests == 0
    fleet.leave("b")
    assert fleet.resolve("m") is None


# what a name means


def test_what_left_is_freed_with_its_last_request() -> None:
    """At once: none of it is a cycle of references, which would wait for the garbage collector."""
    fleet = fleet_of("leaves-soon", "b", ranks=(0, 1))
    booking = target(fleet, "leaves-soon/0").book(10, 10)
    gc.collect()
    gc.disable()
    try:
        fleet.leave("leaves-soon")
        booking.release()
        del booking
        found = [one.id for one in gc.get_objects() if isinstance(one, Instance | Target)]
    finally:
        gc.enable()
    assert not [id for id in found if id.startswith("leaves-soon")]


def test_aliases_and_adapters() -> None:
    fleet = fleet_of("a", cards=[M, ALIAS, LORA])
    assert fleet.resolve("m") == ServedModel("m", None)
    assert fleet.resolve("m-alias") == ServedModel("m", None)
    assert fleet.resolve("lora-a") == ServedModel("m", "lora-a")
    assert fleet.resolve("nobody") is None
    assert instance(fleet, "a").base == "m"


def test_only_targets_that_serve_it_are_candidates() -> None:
    fleet = fleet_of("a", "b")
    fleet.mark_ready("b", [M, LORA], [0])
    fleet.join(schema.InstanceConfig(url="http://c:1", name="c"))
    fleet.mark_ready("c", [OTHER], [0])
    assert ids(fleet, "m") == ["a/0", "b/0"]
    assert ids(fleet, "lora-a") == ["b/0"]
    assert ids(fleet, "other") == ["c/0"]
    assert ids(fleet, "nobody") == []
    assert ids(fleet, "m", excluding=["a/0"]) == ["b/0"]
    assert [card.id for card in fleet.models()] == ["m", "lora-a", "other"]


def test_serving_counts_those_that_are_not_well_too() -> None:
    fleet = fleet_of("a", "b")
    fleet.join(schema.InstanceConfig(url="http://c:1", name="c"))
    fleet.mark_ready("c", [OTHER], [0])
    fleet.drain("a")
    assert [target.id for target in fleet.targets_serving("m")] == ["a/0", "b/0"]
    assert [target.id for target in fleet.targets_serving(None)] == ["a/0", "b/0", "c/0"]
    assert [target.id for target in fleet.candidates(None, (), 0.0)] == ["b/0", "c/0"]
    assert fleet.targets_serving("nobody") == []


def test_an_adapter_loaded_at_runtime_is_served_without_joining_again() -> None:
    fleet = fleet_of("a")
    target(fleet, "a/0").apply_gauges(page(), 1.0)
    fleet.set_models("a", [M, LORA])
    assert ids(fleet, "lora-a") == ["a/0"]
    assert target(fleet, "a/0").load_book.gauges_at == 1.0
    fleet.set_models("a", [M])
    assert ids(fleet, "lora-a") == []


# ranks


def test_ranks_are_targets_of_their_own_and_need_the_header() -> None:
    fleet = fleet_of("a", ranks=(1, 0))
    assert ids(fleet) == ["a/0", "a/1"]
    assert instance(fleet, "a").has_ranks
    assert not instance(fleet_of("b"), "b").has_ranks
    assert target(fleet, "a/1").latency_model is target(fleet, "a/0").latency_model
    assert target(fleet, "a/1").load_book is not target(fleet, "a/0").load_book


def test_a_metrics_page_makes_ranks_known() -> None:
    fleet = fleet_of("a")
    joined, left = fleet.apply_metrics("a", {0: page(1), 1: page(2)}, 3.0)
    assert [t.id for t in joined] == ["a/1"]
    assert not left
    assert ids(fleet) == ["a/0", "a/1"]
    assert target(fleet, "a/1").load_book.gauges.running == 2
    assert fleet.apply_metrics("a", {0: page(), 1: page()}, 4.0) == NO_CHANGES


def test_a_rank_that_is_in_no_page_any_more_leaves() -> None:
    fleet = fleet_of("a", ranks=())
    fleet.apply_metrics("a", {2: page(), 3: page()}, 1.0)
    assert ids(fleet) == ["a/0", "a/2", "a/3"]  # 0 was a guess
    booking = target(fleet, "a/0").book(10, 10)
    fleet.apply_metrics("a", {0: page(), 2: page(), 3: page()}, 2.0)  # it was in one again: counted anew
    fleet.apply_metrics("a", {2: page(), 3: page()}, 3.0)
    fleet.apply_metrics("a", {2: page(), 3: page()}, 4.0)
    fleet.apply_metrics("a", {}, 4.5)  # nothing could be read: that says nothing
    assert ids(fleet) == ["a/0", "a/2", "a/3"]
    joined, left = fleet.apply_metrics("a", {2: page(), 3: page()}, 5.0)
    assert [t.id for t in left] == ["a/0"]
    assert not joined
    assert ids(fleet) == ["a/2", "a/3"]
    assert booking.release()


def test_a_rank_that_publishes_events_stays_whatever_the_page_says() -> None:
    fleet = fleet_of("a", ranks=(0, 1))
    for at in range(5):
        fleet.apply_metrics("a", {0: page(), 2: page()}, float(at))
    assert ids(fleet) == ["a/0", "a/1", "a/2"]


def test_no_instance_gets_more_ranks_than_the_bound() -> None:
    fleet = fleet_of("a", ranks=tuple(range(100)))
    fleet.apply_metrics("a", {rank: page() for rank in range(50, 50 + MAX_RANKS)}, 1.0)
    assert len(ids(fleet)) == MAX_RANKS


def test_an_instance_has_two_block_sizes_at_most() -> None:
    fleet = fleet_of("a", "b", ranks=range(9))
    for rank in range(9):
        target(fleet, f"a/{rank}").set_block_tokens(10 + rank // 2)
        target(fleet, f"b/{rank}").set_block_tokens(16)
    assert fleet.block_sizes("m") == {10, 11, 16}


def test_one_engine_behind_one_door_is_that_engine_whatever_its_number() -> None:
    fleet = fleet_of("a")
    assert fleet.apply_metrics("a", {3: page(running=5)}, 1.0) == NO_CHANGES
    assert ids(fleet) == ["a/0"]
    assert target(fleet, "a/0").load_book.gauges.running == 5


def test_learning_again_keeps_what_is_in_flight_and_forgets_the_old_process() -> None:
    fleet = fleet_of("a", ranks=(0, 1))
    kept = target(fleet, "a/1")
    booking = kept.book(10, 10)
    kept.apply_gauges(page(1), 1.0)
    for _ in range(3):
        kept.breaker.on_request_end("failure", 1.0)
    assert ids(fleet, now=1.0) == ["a/0"]
    assert (kept.block_tokens, kept.capacity_tokens) == (16, 1600)
    fleet.mark_ready("a", [M], [])
    assert target(fleet, "a/1") is kept
    assert ids(fleet, now=1.0) == ["a/0", "a/1"]
    assert (kept.load_book.requests, kept.load_book.gauges_at, kept.block_tokens) == (1, None, None)
    fleet.mark_ready("a", [M], [0])
    assert ids(fleet, now=1.0) == ["a/0"]
    assert booking.release()


def test_the_stream_s_block_size_wins_over_the_page_s() -> None:
    one = target(fleet_of("a"), "a/0")
    one.block_tokens = 32
    one.apply_gauges(page(), 1.0)
    assert one.block_tokens == 32


def test_gauges_of_a_down_instance_are_unknown_even_if_a_late_page_comes() -> None:
    fleet = fleet_of("a")
    fleet.apply_metrics("a", {0: page(4)}, 1.0)
    fleet.record_probe_failure("a", 2.0)
    fleet.record_probe_failure("a", 2.0)
    assert target(fleet, "a/0").load_book.gauges_at is None
    fleet.apply_metrics("a", {0: page(4)}, 1.9)
    assert target(fleet, "a/0").load_book.gauges_at is None


def test_polling_marks_every_rank() -> None:
    fleet = fleet_of("a", ranks=(0, 1))
    for rank in (0, 1):
        for booking in [target(fleet, f"a/{rank}").book(1, 1) for _ in range(3)]:
            booking.release()
    fleet.begin_poll("a")
    fleet.apply_metrics("a", {0: page(2), 1: page(3)}, 1.0)
    assert [target(fleet, f"a/{rank}").load_book.elsewhere for rank in (0, 1)] == [2, 3]


# breaker, speed


def test_an_open_breaker_takes_its_target_out_until_its_one_trial() -> None:
    fleet = fleet_of("a", "b")
    broken = target(fleet, "a/0")
    for _ in range(3):
        broken.breaker.on_request_end("failure", 0.0)
    assert ids(fleet, now=1.0) == ["b/0"]
    assert ids(fleet, now=5.0) == ["a/0", "b/0"]
    broken.breaker.on_request_sent(5.0)
    assert ids(fleet, now=5.0) == ["b/0"]
    broken.breaker.on_request_end("success", 5.5)
    assert ids(fleet, now=5.5) == ["a/0", "b/0"]


def fail(fleet: Fleet, *targets: str, verdict: Verdict = "failure", now: float = 0.0) -> None:
    for id in targets:
        for _ in range(3):
            target(fleet, id).breaker.on_request_end(verdict, now)


def test_where_all_breakers_are_open_they_do_not_count() -> None:
    fleet = fleet_of("a", "b", "c")
    fail(fleet, "a/0", "b/0", "c/0")
    assert ids(fleet) == ["a/0", "b/0", "c/0"]
    assert ids(fleet, excluding=["b/0"]) == ["a/0", "c/0"]
    assert ids(fleet, excluding=["a/0", "b/0", "c/0"]) == []
    fleet.drain("a")
    assert ids(fleet) == ["b/0", "c/0"], "nobody gets a request who is not ready"
    assert ids(fleet, model="nobody's") == []


def test_where_all_breakers_are_open_those_that_could_be_reached_come_first() -> None:
    fleet = fleet_of("a", "b")
    fail(fleet, "a/0", verdict="unreachable")
    fail(fleet, "b/0")
    assert ids(fleet) == ["b/0"]
    assert ids(fleet, excluding=["b/0"]) == ["a/0"]
    assert ids(fleet, now=5.0) == ["a/0", "b/0"], "half open"


def test_an_open_breaker_is_ignored_for_a_retry_that_has_nowhere_else_to_go() -> None:
    fleet = fleet_of("a", "b")
    fail(fleet, "a/0")
    assert ids(fleet, excluding=["b/0"]) == ["a/0"]


def test_a_target_that_only_prefills_does_not_stand_for_one_that_can_answer() -> None:
    fleet = fleet_of("a", "b")
    transfer = schema.TransferProtocol(protocol="nixl")
    fleet.join(schema.InstanceConfig(url="http://p:8000", name="p", role="prefill", transfer=transfer))
    fleet.mark_ready("p", [M], [0])
    fail(fleet, "a/0", "b/0")
    assert ids(fleet) == ["p/0", "a/0", "b/0"]
    fail(fleet, "p/0")
    assert ids(fleet) == ["a/0", "b/0"], "they can do without it"


def test_a_ready_target_is_found_whatever_its_breaker() -> None:
    fleet = fleet_of("a", "b")
    fail(fleet, "a/0")
    found = fleet.ready_target("m", TargetId("a/0"))
    assert found is target(fleet, "a/0")
    assert fleet.ready_target("other", TargetId("a/0")) is None
    fleet.drain("a")
    assert fleet.ready_target(None, TargetId("a/0")) is None


def test_only_lone_prefills_teach_speed() -> None:
    one = target(fleet_of("a"), "a/0")
    alone, queued = one.book(100, 100), one.book(100, 100)
    one.observe_prefill(queued, 100, 0, 500.0, 1.0)
    assert one.latency_model.samples == 0
    one.observe_prefill(alone, 100, 0, 50.0, 1.0)
    assert one.latency_model.samples == 1


# the busy share


def test_busy_is_unknown_before_anybody_looked_and_then_averages_over_twenty_seconds() -> None:
    fleet = fleet_of("a", "b", "c", "d")
    assert fleet.occupancy.busy is None
    fleet.on_arrival(0.0)
    assert fleet.occupancy.busy == 0.0
    bookings = [target(fleet, f"{name}/0").book(10, 10) for name in ("a", "b")]
    fleet.on_arrival(20.0)
    assert fleet.occupancy.busy == pytest.approx(0.5 * (1 - 0.36788), abs=1e-4)  # e^-1 of the old is left
    for booking in bookings:
        booking.on_first_byte()
    fleet.on_arrival(1e6)
    assert fleet.occupancy.busy == pytest.approx(0.0)


def test_busy_is_a_share_of_ready_instances_not_of_ranks() -> None:
    fleet = fleet_of("a", "b", "c", ranks=(0, 1))
    fleet.record_probe_failure("c", 0.0)
    fleet.record_probe_failure("c", 0.0)
    for rank in (0, 1):
        target(fleet, f"a/{rank}").book(10, 10)
    fleet.on_arrival(0.0)
    assert fleet.occupancy.busy == 0.5


def test_the_live_share_is_the_mean_of_the_targets_whose_memory_is_known() -> None:
    fleet = fleet_of("a", "b", "c")
    for id in ("a/0", "b/0"):
        target(fleet, id).apply_gauges(page()._replace(kv_usage=0.0), 0.0)
    target(fleet, "a/0").book(10, 800)
    target(fleet, "b/0").book(10, 5000)  # more than there is: all of it
    fleet.on_arrival(0.0)
    assert fleet.occupancy.live_share == 0.75


def test_without_a_known_capacity_the_live_share_is_unknown() -> None:
    fleet = fleet_of("a")
    target(fleet, "a/0").book(10, 500)
    fleet.on_arrival(0.0)
    assert fleet.occupancy.live_share is None


def test_a_burst_of_arrivals_looks_once() -> None:
    fleet = fleet_of("a")
    fleet.on_arrival(10.0)
    target(fleet, "a/0").book(10, 10)
    fleet.on_arrival(10.01)
    assert fleet.occupancy.busy == 0.0
    fleet.on_arrival(10.06)
    assert 0.0 < (fleet.occupancy.busy or 0.0) < 0.01


def test_an_empty_fleet_is_not_busy_but_unknown() -> None:
    fleet = Fleet(schema.FleetConfig())
    fleet.on_arrival(0.0)
    assert fleet.occupancy.busy is None


def test_busy_is_shown_to_four_digits_and_averaged_in_full() -> None:
    fleet = fleet_of("a", "b", "c")
    target(fleet, "a/0").book(10, 10)
    fleet.on_arrival(0.0)
    assert fleet.occupancy.busy == 0.3333
    for i in range(1, 1001):
        fleet.on_arrival(i * 0.06)
    assert fleet.occupancy.busy == 0.3333, "rounding errors of a thousand looks would have added up"


# the typical instance


def test_the_typical_instance_is_of_those_that_are_ready_and_serve_the_model() -> None:
    fleet = fleet_of("a", "b", "c")
    fleet.join(schema.InstanceConfig(url="http://d:1", name="d"))
    fleet.mark_ready("d", [OTHER], [0])
    fleet.join(schema.InstanceConfig(url="http://e:1", name="e"))  # never told what it serves
    for name in ("a", "b", "c", "d"):
        instance(fleet, name).latency_model.observe_prefill(1000, 0, 500.0, 0.0)
    nominal = fleet.nominal_speed("m", 1.0)
    assert nominal is not None
    assert nominal.samples == 3
    for name, samples in ((None, 4), ("other", 1)):
        everybodys = fleet.nominal_speed(name, 1.0)
        assert everybodys is not None
        assert everybodys.samples == samples
    assert fleet.nominal_speed("nobody's", 1.0) is None


def test_ranks_share_an_instance_and_count_once() -> None:
    fleet = fleet_of("a", ranks=(0, 1))
    instance(fleet, "a").latency_model.observe_prefill(1000, 0, 500.0, 0.0)
    assert fleet.nominal_speed("m", 0.5) == instance(fleet, "a").latency_model.speed(0.5)


def test_the_typical_instance_is_looked_at_anew_each_second_and_when_somebody_comes() -> None:
    fleet = fleet_of("a", "b")
    first = fleet.nominal_speed("m", 10.0)
    for name in ("a", "b"):
        instance(fleet, name).latency_model.observe_prefill(1000, 0, 500.0, 10.0)
    assert fleet.nominal_speed("m", 11.0) is first, "handed on, not made again"
    later = fleet.nominal_speed("m", 11.1)
    assert later is not None
    assert later.samples == 2
    fleet.leave("b")
    alone = fleet.nominal_speed("m", 11.2)
    assert alone is not None
    assert alone.samples == 1
    fleet.record_probe_failure("a", 12.0)
    fleet.record_probe_failure("a", 12.0)
    assert fleet.nominal_speed("m", 13.0) is None


def priced(fleet: Fleet, now: float = 0.0, model: str = "m") -> dict[str, float]:
    """Milliseconds of 1000 tokens at each candidate."""
    return {each.id: each.build_row(now).speed.prefill_ms(1000, 0) for each in fleet.candidates(model, (), now)}


def test_unmeasured_targets_are_priced_as_their_measured_peers_from_the_first_sample_on() -> None:
    fleet = fleet_of("a", "b", "c", cards=[M, LORA])
    fleet.join(schema.InstanceConfig(url="http://z:8000", name="z"))
    fleet.mark_ready("z", [OTHER], [0])
    assert len(set(priced(fleet).values())) == 1
    first = target(fleet, "a/0")
    first.observe_prefill(first.book(1000, 1000), 1000, 0, 777.0, 0.0)
    assert priced(fleet)["a/0"] == pytest.approx(777.0, rel=0.15)
    assert len(set(priced(fleet).values())) == 1, "to the last digit"
    assert priced(fleet, model="lora-a") == priced(fleet)
    assert priced(fleet, model="other")["z/0"] < 400.0, "another model"
    fleet.join(schema.InstanceConfig(url="http://d:8000", name="d"))
    fleet.mark_ready("d", [M], [0])
    assert len(set(priced(fleet).values())) == 1, "and who comes later"
    rows = [each.build_row(0.0) for each in fleet.candidates("m", (), 0.0)]
    assert [row.speed.samples for row in rows] == [1, 0, 0, 0]


def test_peers_have_the_same_role() -> None:
    fleet = Fleet(schema.FleetConfig())
    transfer = schema.TransferProtocol(protocol="nixl")
    for name, role in (("p", "prefill"), ("q", "prefill"), ("d", "decode"), ("e", "decode")):
        fleet.join(schema.InstanceConfig(url=f"http://{name}:1", name=name, role=role, transfer=transfer))  # type: ignore[arg-type]
        fleet.mark_ready(name, [M], [0])
    first = target(fleet, "p/0")
    first.observe_prefill(first.book(1000, 1000), 1000, 0, 777.0, 0.0)
    found = priced(fleet)
    assert found["p/0"] == found["q/0"] == pytest.approx(777.0, rel=0.15)
    assert found["d/0"] == found["e/0"] < 400.0


def test_a_value_that_is_hardly_another_one_is_not_handed_out() -> None:
    fleet = fleet_of("a", "b")
    first = target(fleet, "a/0")
    for second in range(30):
        first.latency_model.observe_prefill(1000, 0, 500.0, 2.0 * second)
        priced(fleet, 2.0 * second)
    fleet.columns("m", 60.0)
    first.latency_model.observe_prefill(1000, 0, 502.0, 61.0)
    priced(fleet, 62.0)
    assert not fleet.row_cache.changed_targets


def test_names_that_nobody_serves_are_not_remembered() -> None:
    fleet = fleet_of("a")
    for i in range(100):
        assert fleet.nominal_speed(f"guess-{i}", 0.0) is None
    assert not fleet._nominal._known


# who may get a request is kept between requests


def test_while_nothing_changes_candidates_are_found_only_once() -> None:
    fleet = fleet_of("a", "b")
    assert fleet.candidates("m", (), 0.0) is fleet.candidates("m", (), 1.0)


def test_what_ends_at_a_target_that_left_does_not_make_the_others_be_looked_for() -> None:
    fleet = fleet_of("a", "b")
    gone = target(fleet, "a/0")
    fleet.leave("a")
    for _ in range(3):
        gone.breaker.on_request_end("failure", 0.0)
    assert fleet.candidates("m", (), 0.0) is fleet.candidates("m", (), 1.0)


CHANGES = ("drain", "undrain", "leave", "join", "down", "up", "fails", "well", "ranks", "serves")


@given(st.lists(st.tuples(st.sampled_from(CHANGES), st.sampled_from("abc")), max_size=25))
def test_candidates_are_those_that_looking_at_each_would_find(story: Sequence[tuple[str, str]]) -> None:
    fleet = fleet_of("a", "b", "c")
    for change, name in story:
        here = fleet.get(name)
        match change:
            case "drain" | "undrain":
                fleet.drain(name, change == "drain")
            case "leave":
                fleet.leave(name)
            case "join":
                fleet.join(schema.InstanceConfig(url=f"http://{name}:8000", name=name))
            case "down":
                for _ in range(10):
                    fleet.record_probe_failure(name, 0.0)
            case "up":
                fleet.record_probe_success(name, 0.0)
                fleet.mark_ready(name, [M], [0])
            case "ranks":
                fleet.mark_ready(name, [M], [0, 1])
            case "serves":
                fleet.set_models(name, [OTHER])
            case "fails" if here is not None:
                for _ in range(3):
                    here.targets[0].breaker.on_request_end("failure", 0.0)
            case "well" if here is not None:
                here.targets[0].breaker.on_request_end("success", 0.0)
        for model in ("m", "other", "nobody's", None):
            ready = [t for t in fleet.targets_serving(model) if t.instance.state is InstanceState.READY]
            assert list(fleet.candidates(model, (), 1.0)) == [t for t in ready if t.breaker.allows(1.0)] or ready


def die_and_return(fleet: Fleet, name: str) -> None:
    while not fleet.record_probe_failure(name, 0.0):
        pass
    assert fleet.record_probe_success(name, 0.0)
    fleet.mark_ready(name, (M,), (0,))


def test_restarts_are_counted_by_the_start_of_the_process() -> None:
    """Also those that no probe noticed; an engine that was only not reached is the same process."""
    fleet = fleet_of("a")
    for started_wall_s in (100.0, 100.0, 160.0):
        fleet.apply_metrics("a", {0: page()._replace(started_wall_s=started_wall_s)}, 1.0)
    assert instance(fleet, "a").restarts == 1
    die_and_return(fleet, "a")
    fleet.apply_metrics("a", {0: page()._replace(started_wall_s=160.0)}, 1.0)
    assert instance(fleet, "a").restarts == 1
    die_and_return(fleet, "a")
    fleet.apply_metrics("a", {0: page()._replace(started_wall_s=220.0)}, 1.0)
    assert instance(fleet, "a").restarts == 2


def test_without_the_start_of_the_process_each_return_is_a_restart() -> None:
    fleet = fleet_of("a")
    fleet.apply_metrics("a", {0: page()}, 1.0)
    assert instance(fleet, "a").restarts == 0
    for restarts in (1, 2, 3):
        die_and_return(fleet, "a")
        assert instance(fleet, "a").restarts == restarts
