"""What the pool's room tells people and metrics: who leads, what was answered, how each model's blocks are called."""

from __future__ import annotations

from typing import Literal, NamedTuple

from router.backends.mooncake import hash_detection as calibration
from router.backends.mooncake import key_check
from router.backends.mooncake.leader import MasterState
from router.backends.mooncake.query import StoreQuery
from router.kvcache.engine_hashes import EngineChain

Unknown = Literal[
    "no_leader",  # no master leads, or none is reachable
    "silent",  # the leader gave no answer
    "standby",  # it does not lead any more
    "error",  # it gave an answer that says nothing
    "late",  # none within the deadline
    "no_block_size",  # the engines have not told it yet, or do not agree
    "no_name",  # the engines have not told their model's (or adapter's) path yet
    "no_comma",  # a key with a comma cannot be asked for
    "uncalibrated",  # by which hash the engines go is not proved, or refuted
    "misnamed",  # the engines' keys are others than ours
]


class ModelReport(NamedTuple):
    """What is known of how one model's blocks are called."""

    model: str
    calibration: calibration.State
    chain: EngineChain | None
    key: str | None  # what a key begins with; None: no prompt was asked for yet
    keys_per_block: int | None
    keys: key_check.State
    trouble: str | None  # one line for the operator
    remembered_blocks: int


class PoolReport(NamedTuple):
    leader: str | None
    masters: tuple[MasterState, ...]
    hits: int  # requests answered with a number above 0
    misses: int  # with 0
    unknown: dict[Unknown, int]  # with None, by `Unknown`
    queries: StoreQuery
    remembered_digests: int
    models: list[ModelReport]
