"""Complete records go to the decision log, with the block keys of their prompts."""

from __future__ import annotations

from typing import final

from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.request.request import Held, Request
from router.request.services import Services
from router.scheduling.policy.record import Record
from router.telemetry.decision_log.writer import DecisionLogWriter

BLOCK_TOKENS = 512  # as in the Mooncake traces


class LoggedRequest(Held):
    def __init__(self, log: DecisionLogWriter, tokens: TokenizedPrompt | None) -> None:
        self._log = log
        self._tokens = tokens

    def on_record(self, record: Record) -> None:
        if self._tokens is not None:
            record.blocks = self._tokens.keys_every(BLOCK_TOKENS)

    def release(self, request: Request) -> None:
        if request.record is not None:
            self._log.add(request.record)


@final
class DecisionLogStage:
    def __init__(self, log: DecisionLogWriter) -> None:
        self._log = log

    def enter(self, request: Request, services: Services) -> None:
        tokens = request.tokens if isinstance(request.tokens, TokenizedPrompt) else None
        request.hold(LoggedRequest(self._log, tokens))
