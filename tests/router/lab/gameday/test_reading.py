"""What a metrics page shows: read from the page that the router itself renders, and compared with the one before."""

from __future__ import annotations

import pytest
from prometheus_client import generate_latest
from prometheus_client.registry import CollectorRegistry

from docs.tools.whole_router import list_families
from router.config.sections.gameday import FaultKind
from router.lab.gameday.reading import NOTICED_BY, WANTED, MetricsReading, is_well, read_metrics
from router.telemetry.metrics.family import build_family, by_label
from router.telemetry.metrics.page import MetricsPage
from router.telemetry.metrics.prometheus import Metrics
from router.telemetry.metrics.snapshot import RouterSnapshot
from tests.router.telemetry.metrics.test_state import READY, SILENT

CALM = MetricsReading(has_pool=True, policies=frozenset({"warm"}), booked=3.0)


def page(now: RouterSnapshot) -> str:
    return MetricsPage(Metrics(lambda model: True, lambda engine: True), now).render().decode()


def test_it_reads_what_the_router_writes() -> None:
    closed = READY._replace(breaker="closed")
    now = read_metrics(page(RouterSnapshot([closed, SILENT], restarts={"a": 2, "b": 1})))
    assert now.not_ready == {"b"}
    assert now.tripped == {"b/0"}
    assert now.untrusted == {"b/0"}
    assert (now.restarts, now.gaps, now.lag_s, now.booked) == (3, 2, 0.5, 6)  # both targets have READY's counts
    assert now.slow == {"a"}
    assert now.has_pool is None


def test_every_metric_that_it_reads_exists() -> None:
    names = {family.name + "_total" * (family.type == "counter") for family in list_families()}
    assert {f"warmroute_{name}" for name in WANTED} <= names


def test_another_pages_names_are_left_alone() -> None:
    assert (
        read_metrics(generate_latest(CollectorRegistry()).decode() + "warmroute_target_requests_x 5\n")
        == MetricsReading()
    )


SIGNS: dict[FaultKind, dict[str, object]] = {
    "kill": {"restarts": 1.0},
    "freeze": {"not_ready": frozenset({"a"})},
    "wedge": {"tripped": frozenset({"a/0"})},
    "partition": {"tripped": frozenset({"a/0"})},
    "slow": {"slow": frozenset({"a"})},
    "lossy_events": {"gaps": 1.0},
    "wrong_events": {"untrusted": frozenset({"a/0"})},
    "full_disk": {"write_failures": 1.0},
    "dead_pool": {"has_pool": False},
    "clock_jump": {"lag_s": 3600.0},
    "kill_router": {"silent": frozenset({"10.0.0.2:9004"})},
}


@pytest.mark.parametrize("fault", SIGNS)
def test_a_fault_is_noticed_by_its_sign_and_not_without(fault: FaultKind) -> None:
    assert SIGNS.keys() == NOTICED_BY.keys()
    assert not NOTICED_BY[fault](CALM, CALM)
    assert NOTICED_BY[fault](CALM._replace(**SIGNS[fault]), CALM)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "sign",
    [
        {"not_ready": frozenset({"a"})},
        {"tripped": frozenset({"a/0"})},
        {"untrusted": frozenset({"a/0"})},
        {"has_pool": False},
        {"policies": frozenset({"herd"})},
        {"booked": 9.0},  # by 8 agents
        {"silent": frozenset({"10.0.0.2:9004"})},
    ],
)
def test_what_is_not_well(sign: dict[str, object]) -> None:
    assert is_well(CALM, CALM, 8)
    assert not is_well(CALM._replace(**sign), CALM, 8)  # type: ignore[arg-type]


def test_a_pool_that_leads() -> None:
    for second, has_pool in ((True, True), (False, False)):
        leads = build_family("pool_master_leads", "leads", ("master",), by_label({"m": False, "n": second}))
        assert read_metrics(page(RouterSnapshot(features=[leads]))).has_pool is has_pool
