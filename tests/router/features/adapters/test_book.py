"""Where an adapter is loaded, and which one makes room for it."""

from __future__ import annotations

from router.config.schema import FleetConfig, InstanceConfig
from router.features.adapters.book import AdapterBook, AdapterUse, LoadPlan
from router.fleet.engine_facts import Gauges, ModelCard
from router.fleet.fleet import Fleet

MANAGED = ("poet", "sql", "law", "tax")


def a_fleet(**adapters: str) -> Fleet:
    """Instances by name, each of the model `llama` with adapters, separated by spaces."""
    fleet = Fleet(FleetConfig())
    for name, loaded in adapters.items():
        fleet.join(InstanceConfig(url=f"http://{name}:1", name=name))
        cards = [ModelCard(adapter, "/a", "llama", None) for adapter in loaded.split()]
        fleet.mark_ready(name, [ModelCard("llama", None, None, None), *cards], [0])
    return fleet


def a_book(fleet: Fleet, most: int = 2) -> AdapterBook:
    return AdapterBook(fleet, MANAGED, most)


def use(book: AdapterBook, *adapters: str) -> None:
    """A request for each adapter, one after the other, which is over."""
    for now, adapter in enumerate(adapters):
        book.begin(adapter, float(now))
        book.end(adapter)


def test_it_goes_where_the_fewest_are() -> None:
    assert a_book(a_fleet(a="poet", b="")).plan("llama") == LoadPlan("b")
    busy = a_fleet(a="", b="")
    next(iter(next(iter(busy)).targets.values())).book(10, 10)
    assert a_book(busy).plan("llama") == LoadPlan("b"), "else where the fewest requests are"
    assert a_book(a_fleet(a="poet")).plan("qwen") is None


def test_what_is_on_its_way_takes_room() -> None:
    book = a_book(a_fleet(a="", b="poet"))
    book.loading["a"] = 2
    assert book.plan("llama") == LoadPlan("b")


def test_an_instance_that_is_not_ready_is_none() -> None:
    fleet = a_fleet(a="", b="poet")
    fleet.drain("a")
    assert a_book(fleet).plan("llama") == LoadPlan("b")
    assert a_book(fleet).find_instance("poet") == "b"
    fleet.drain("b")
    assert a_book(fleet).find_instance("poet") is None


def test_the_coldest_makes_room_and_one_that_nobody_asked_for_first() -> None:
    book = a_book(a_fleet(a="poet sql", b="law tax"))
    use(book, "law", "tax", "sql")
    assert book.plan("llama") == LoadPlan("a", "poet")
    use(book, "law", "tax", "sql", "poet")
    assert book.plan("llama") == LoadPlan("b", "law")


def test_one_with_requests_in_progress_stays() -> None:
    book = a_book(a_fleet(a="poet sql"))
    use(book, "poet", "sql")
    book.begin("poet", 2.0)
    book.begin("sql", 3.0)
    assert book.plan("llama") is None
    book.end("sql")
    assert book.plan("llama") == LoadPlan("a", "sql")


def test_what_requests_of_other_processes_use_counts() -> None:
    here, there = a_book(a_fleet(a="poet sql")), a_book(a_fleet())
    use(here, "poet", "sql")
    there.begin("poet", 50.0)
    uses = there.list_uses(MANAGED, 51.0)
    assert uses == {"poet": AdapterUse(1, 1.0)}
    assert here.plan("llama") == LoadPlan("a", "poet")
    here.learn(uses, 9.0)
    assert here.plan("llama") == LoadPlan("a", "sql"), "used later, by another clock"
    assert here.plan("llama", {"sql"}) == LoadPlan("a", "poet")
    assert here.plan("llama", {"sql", "poet"}) is None
    here.learn({"poet": AdapterUse(0, 100.0)}, 9.0)
    assert here.list_uses(["poet"], 9.0) == {"poet": AdapterUse(0, 1.0)}, "the last use counts, whoever reports it"


def test_one_that_an_engine_reports_as_running_or_waiting_stays() -> None:
    fleet = a_fleet(a="poet sql")
    fleet.apply_metrics("a", {0: Gauges(1, 1, None, None, None, frozenset({"poet"}), 4, frozenset({"sql"}))}, 0.0)
    assert a_book(fleet).plan("llama") is None


def test_one_that_could_not_be_loaded_again_stays() -> None:
    assert a_book(a_fleet(a="started with"), most=2).plan("llama") is None
