"""Status of the shared pool for the admin API and metrics: leader, answers, and the form of each model's keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from prometheus_client.core import Metric

from router.features.pool import hash_detection as calibration
from router.features.pool import key_check
from router.features.pool.leader import MasterState
from router.features.pool.query import StoreQuery
from router.kvcache.engine_hashes import EngineChain
from router.scheduling.policy.record_view import to_plain
from router.telemetry.metrics.family import build_family, by_label, one_of

NAME_STATES = ("waiting", "proved", "refuted")

Unknown = Literal[
    "no_leader",  # no master leads, or none is reachable
    "silent",  # the leader did not answer
    "standby",  # the master no longer leads
    "error",  # an unreadable answer
    "late",  # no answer within the deadline
    "no_block_size",  # the engines have not reported their block size yet, or do not agree
    "no_name",  # the engines have not reported their model's (or adapter's) path yet
    "no_comma",  # a key with a comma cannot be queried
    "uncalibrated",  # the engines' hash is not proved, or refuted
    "misnamed",  # the engines' keys differ from ours
]


class ModelReport(NamedTuple):
    """The form of one model's keys, as far as known."""

    model: str
    calibration: calibration.State
    chain: EngineChain | None
    key: str | None  # the first key's prefix; None: no lookup yet
    keys_per_block: int | None
    keys: key_check.State
    trouble: str | None  # one line for the operator
    remembered_blocks: int


class PoolReport(NamedTuple):
    """Status of the pool's client."""

    leader: str | None
    masters: tuple[MasterState, ...]
    hits: int  # lookups that found blocks
    misses: int  # lookups that found none
    unknown: dict[Unknown, int]  # lookups without a result, by reason
    queries: StoreQuery
    remembered_digests: int
    models: list[ModelReport]


def describe_pool(report: PoolReport) -> dict[str, Any]:
    """Describe the shared pool: its masters, query outcomes, and the form of each model's keys."""
    return {
        "leader": report.leader,
        "masters": [to_plain(master) for master in report.masters],
        "answers": count_answers(report),
        "asked": to_plain(report.queries),
        "models": [
            {**to_plain(model), "chain": None if model.chain is None else str(model.chain)} for model in report.models
        ],
        "remembered_digests": report.remembered_digests,
    }


def list_families(report: PoolReport) -> Iterator[Metric]:
    """Return the pool's metrics."""
    leads = {master.instance: master.instance == report.leader for master in report.masters}
    names = {model.model: "refuted" if model.trouble is not None else model.calibration for model in report.models}
    queries = report.queries
    yield build_family("pool_master_leads", "1 for the Mooncake master that leads", ("master",), by_label(leads))
    answers = "requests that queried the shared pool, by answer: held, nothing, or why it is unknown"
    yield build_family("pool_answers_total", answers, ("answer",), by_label(count_answers(report)))
    yield build_family("pool_queries_total", "queries to the leading master", (), [((), queries.questions)])
    yield build_family("pool_keys_total", "keys in those queries", (), [((), queries.keys)])
    yield build_family("pool_query_seconds_total", "time until their answers, sum", (), [((), queries.answer_s)])
    yield build_family("pool_queries_answered_total", "queries that were answered", (), [((), queries.answers)])
    proved = "1 for whether the router's names of the model's blocks are proved to be the engines' own"
    states = one_of(NAME_STATES, (((model,), state) for model, state in names.items()))
    yield build_family("pool_names", proved, ("model", "state"), states)


def count_answers(report: PoolReport) -> dict[str, int]:
    """Return the number of requests by the pool's answer: held, nothing, or the reason why it is unknown."""
    return {"held": report.hits, "nothing": report.misses} | {str(why): n for why, n in report.unknown.items()}
