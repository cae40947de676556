"""The facts of a request from which a scheduler chooses a target for each attempt."""

from __future__ import annotations

from typing import NamedTuple

from router.fleet.instance import ServedModel
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.prompt import Prompt
from router.scheduling.policy.record import Record
from scorers.contract import PoolHit


class SchedulingRequest(NamedTuple):
    """The facts of a request that the scheduler reads. The scheduler writes to `record`. `served` is None for a
    request about a stored response, which names no model.
    """

    record: Record
    prompt: Prompt
    served: ServedModel | None
    known: TokenizedPrompt | None  # the prompt's tokens; None: unknown
    pool_hit: PoolHit | None = None  # None: unknown
