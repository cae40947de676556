"""Status of the shared pool for the admin API and metrics: leader, answers, how each model's keys are formed."""

from __future__ import annotations

from typing import Literal, NamedTuple

from router.features.pool import hash_detection as calibration
from router.features.pool import key_check
from router.features.pool.leader import MasterState
from router.features.pool.query import StoreQuery
from router.kvcache.engine_hashes import EngineChain

Unknown = Literal[
    "no_leader",  # no master leads, or none is reachable
    "silent",  # the leader did not answer
    "standby",  # it does not lead any more
    "error",  # an unreadable answer
    "late",  # no answer within the deadline
    "no_block_size",  # the engines have not reported it yet, or do not agree
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
