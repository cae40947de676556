"""The facts of a request from which a scheduler chooses a target for each attempt."""

from __future__ import annotations

from typing import final

from router.fleet.instance import ServedModel
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.prompt import Prompt
from router.scheduling.policy.record import Record
from scorers.contract import PoolHit


@final
class SchedulingRequest:
    """The facts of a request that the scheduler reads. The scheduler writes to `record`. `served` is None for a
    request about a stored response, which names no model.
    """

    def __init__(
        self,
        record: Record,
        prompt: Prompt,
        served: ServedModel | None,
        known: TokenizedPrompt | None,
        pool_hit: PoolHit | None = None,
    ) -> None:
        self.record: Record = record
        self.prompt: Prompt = prompt
        self.served: ServedModel | None = served
        self.known: TokenizedPrompt | None = known  # the prompt's tokens; None: unknown
        self.pool_hit: PoolHit | None = pool_hit  # None: unknown
