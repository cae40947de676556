"""The target that gets a prefix: the one that has it soonest, by its queue, its speed and what it holds of it."""

from __future__ import annotations

import pytest

from router.clock import ManualClock
from router.config import schema
from router.control.core import build_scheduler
from router.features.preload.placement import find_place
from router.fleet.engine_facts import EventEndpoint, Gauges, ModelCard
from router.fleet.instance import Target
from router.kvcache.events import TargetId
from router.scheduling.experiments.policy_set import PolicySet
from tests.fakes.caches import RING, Cache, prompt_of
from tests.router.features.preload.test_preloader import LEAST

PREFIX = prompt_of(range(4000))


class House:
    """A fleet of idle engines."""

    def __init__(self, *names: str) -> None:
        self.clock = ManualClock(100.0)
        self.caches = {name: Cache() for name in names}
        self.core = build_scheduler(schema.Config(seed=1), PolicySet({"least": LEAST}, "least"), RING, self.clock)
        for name in names:
            self.core.fleet.join(schema.InstanceConfig(url=f"http://{name}:8000", name=name))
            source = EventEndpoint(0, f"tcp://{name}:5557", None, "")
            self.core.add_instance(name, [ModelCard("m", "/m", None, 8192)], [source])
            self.core.apply_metrics(name, {0: Gauges(0, 0, 0.0, 4, 40_000, None, None)}, 100.0)
            self.core.indexer.on_batch(TargetId(f"{name}/0"), self.caches[name].batch())

    def target(self, name: str) -> Target:
        target = self.core.fleet.target(TargetId(f"{name}/0"))
        assert target is not None
        return target

    def store(self, name: str, ids: list[int]) -> None:
        cache = self.caches[name]
        self.core.indexer.on_batch(TargetId(f"{name}/0"), cache.batch(cache.stored(ids)))
        while self.core.indexer.resume(TargetId(f"{name}/0")):
            pass

    def place(self) -> str | None:
        found = find_place(self.core, self.core.fleet.targets_serving("m"), PREFIX, self.clock.now())
        return None if found is None else found.id


def test_a_queue_costs_its_prefill_time() -> None:
    house = House("a", "b")
    house.target("a").book(1000, 1000)
    assert house.place() == "b/0"
    house.target("b").book(2000, 2000)
    assert house.place() == "a/0"


def test_what_is_held_need_not_be_computed() -> None:
    house = House("a", "b")
    house.store("b", list(range(2000)))
    assert house.place() == "b/0"
    house.target("b").book(4000, 4000)  # longer than what it spares
    assert house.place() == "a/0"


@pytest.mark.parametrize(("ms", "place"), [(105.0, "b/0"), (150.0, "a/0")])
def test_a_little_slower_is_as_good_and_the_emptier_one_gets_it(ms: float, place: str) -> None:
    house = House("a", "b")
    house.store("a", [7] * 400)
    for name, took_ms in (("a", 100.0), ("b", ms)):
        for _ in range(100):
            house.target(name).latency_model.observe_prefill(1000, 0, took_ms, house.clock.now())
    assert house.place() == place


def test_of_equals_the_emptiest_cache() -> None:
    house = House("a", "b")
    house.store("a", [7] * 400)
    assert house.place() == "b/0"


def test_none_where_all_hold_it() -> None:
    house = House("a")
    house.store("a", list(range(4000)))
    assert house.place() is None
    assert House().place() is None
