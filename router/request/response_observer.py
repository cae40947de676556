"""Sees one attempt's answer pass by: when it began, what it cost, and the one chunk that the client must not see.

The relay tells it what happens on the wire; it tells the core, the record and the tokenizers. Of a pair it also hears
how the prefill half ended, and keeps what that handed over for as long as somebody may come for it.
"""

from __future__ import annotations

from typing import NamedTuple

from router.backends.vllm.disaggregation import LEASE_S, read_handed
from router.clock import Clock
from router.fleet.instance import ServedModel
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.prompt import Endpoint, Prompt, UnknownIds
from router.prompt.tokenization.tokenization import Tokenization
from router.prompt.usage import HideUsage, UsageTail
from router.proxy.disaggregated import PrefillResult
from router.proxy.relay import RelayBroken, RelayDeadline, RelayEnd, RelayFinished, RelayNotStarted, RelayRejected
from router.scheduling.policy.record import PrefillRecord
from router.scheduling.scheduler import UNTOLD, Scheduler
from router.scheduling.ticket import Ticket


class HandedOverKv(NamedTuple):
    """KV that a Nixl prefill half left under a lease, and that nobody has come for."""

    params: bytes
    until_s: float
    leg: PrefillRecord


class ResponseObserver:
    def __init__(
        self,
        ticket: Ticket,
        prompt: Prompt,
        served: ServedModel | None,
        known: TokenizedPrompt | UnknownIds,
        core: Scheduler,
        tokens: Tokenization,
        clock: Clock,
    ) -> None:
        self._ticket = ticket
        self._endpoint = prompt.endpoint
        self._served = served
        self._known = known
        self._core = core
        self._tokens = tokens
        self._clock = clock
        self._tail = UsageTail(prompt.endpoint) if prompt.endpoint is not Endpoint.OTHER else None
        self._hide = HideUsage() if prompt.hide_usage else None
        self._unnamed = prompt.endpoint is Endpoint.RESPONSES  # until the answer's id has passed
        self.handed: HandedOverKv | None = None

    def prefilled(self, prefilled: PrefillResult) -> None:
        """The prefill half is over; a good one's answer tells what it cost."""
        usage = UNTOLD
        if prefilled.end == "ok":
            tail = UsageTail(self._endpoint)
            tail.feed(prefilled.body)
            usage = tail.usage() or UNTOLD
            params = read_handed(prefilled.body)
            if params is not None and self._ticket.attempt.prefill is not None:
                self.handed = HandedOverKv(params, self._clock.now() + LEASE_S, self._ticket.attempt.prefill)
        self._core.settle_prefill(self._ticket, prefilled.end, prefilled.status, usage)

    def first_byte(self, status: int) -> None:
        record = self._ticket.record
        self._ticket.status = record.status = status
        record.ttft_ms = (self._clock.now() - record.arrived_s) * 1e3
        self._core.on_first_byte(self._ticket)

    def feed(self, data: bytes) -> bytes:
        if self._tail is not None:
            self._tail.feed(data)
            if self._unnamed and (response_id := self._tail.response_id()) is not None:
                self._unnamed = False  # known from its first event on: a stream can be cancelled while it runs
                self._core.remember_response(response_id, self._ticket.target.id)
        return data if self._hide is None else self._hide.feed(data)

    def last(self) -> bytes:
        """What was held back and may go out now that the answer is over."""
        return b"" if self._hide is None else self._hide.end()

    def left(self) -> None:
        """The client has gone. Some hang up on the stream's last word, before its end: they got all they wanted."""
        if self._tail is not None and self._tail.whole():
            self._ticket.end = "ok"
            self._read_tail()

    def ended(self, end: RelayEnd) -> None:
        """The relay is over: what it came to goes into the ticket and the record."""
        ticket, record = self._ticket, self._ticket.record
        match end:
            case RelayFinished(connect_s=connect_s):
                ticket.end = "ok"
                record.stages.connect_ms = connect_s * 1e3
                self._read_tail()
            case RelayBroken(trouble=trouble, connect_s=connect_s):
                ticket.end = "broken"
                record.stages.connect_ms = connect_s * 1e3
                record.error = trouble.value
            case RelayDeadline():
                ticket.end = "deadline"
            case RelayRejected():
                ticket.end = "rejected"
            case RelayNotStarted(prefill=True):
                ticket.end = "prefill"
            case RelayNotStarted(reason="connect" | "busy" | "died" as reason):
                ticket.end = reason

    def _read_tail(self) -> None:
        record = self._ticket.record
        if self._tail is None or self._served is None:
            return
        if (usage := self._tail.usage()) is not None:
            record.prompt_tokens, record.cached_tokens, record.output_tokens = usage
            self._tokens.observed(self._served.base, self._known, usage.prompt_tokens)
