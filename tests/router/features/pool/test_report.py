"""What an operator sees of the pool: the admin API's description, and the metrics."""

from __future__ import annotations

from router.features.pool.leader import MasterState
from router.features.pool.query import StoreQuery
from router.features.pool.report import ModelReport, PoolReport, describe_pool, list_families
from tests.router.features.samples import samples_of

PROVED = ModelReport("m", "proved", None, "m@", 2, "waiting", None, 4)
REFUTED = ModelReport("n", "proved", None, "n@", 2, "waiting", "other names", 4)
REPORT = PoolReport(
    "m1",
    (MasterState("m1", True, None, 1.0), MasterState("m2", False, "silent", 1.0)),
    5,
    2,
    {"late": 1},
    StoreQuery(7, 140, 6, 0.014),
    9,
    [PROVED, REFUTED],
)


def test_metrics() -> None:
    assert samples_of(list_families(REPORT)) == {
        ("warmroute_pool_master_leads", "m1"): 1,
        ("warmroute_pool_master_leads", "m2"): 0,
        ("warmroute_pool_answers_total", "held"): 5,
        ("warmroute_pool_answers_total", "nothing"): 2,
        ("warmroute_pool_answers_total", "late"): 1,
        ("warmroute_pool_queries_total",): 7,
        ("warmroute_pool_keys_total",): 140,
        ("warmroute_pool_query_seconds_total",): 0.014,
        ("warmroute_pool_queries_answered_total",): 6,
        ("warmroute_pool_names", "m", "waiting"): 0,
        ("warmroute_pool_names", "m", "proved"): 1,
        ("warmroute_pool_names", "m", "refuted"): 0,
        ("warmroute_pool_names", "n", "waiting"): 0,
        ("warmroute_pool_names", "n", "proved"): 0,
        ("warmroute_pool_names", "n", "refuted"): 1,
    }


def test_the_description_is_plain_json() -> None:
    described = describe_pool(REPORT)
    assert (described["leader"], described["answers"]) == ("m1", {"held": 5, "nothing": 2, "late": 1})
    assert [(model["model"], model["trouble"]) for model in described["models"]] == [("m", None), ("n", "other names")]
