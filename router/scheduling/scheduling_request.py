"""A request as a scheduler reads it, to choose a target for each of its attempts."""

from __future__ import annotations

from typing import NamedTuple

from router.fleet.instance import ServedModel
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.prompt import Prompt
from router.scheduling.policy.record import Record
from scorers.contract import PoolHit


class SchedulingRequest(NamedTuple):
    """A request as the scheduler knows it. `record` is written to; `served` is None for a request about a stored
    response, which names no model.
    """

    record: Record
    prompt: Prompt
    served: ServedModel | None
    known: TokenizedPrompt | None  # the prompt's tokens; None: they are not known
    pool_hit: PoolHit | None = None  # None: unknown
