"""Observes one attempt's answer as it passes: when it began, what it cost, and which chunk to hide from the client.

The relay reports events on the wire; the observer updates the scheduler, the record and the tokenizer statistics.
For a prefill/decode pair, the observer is also notified of the end of the prefill half, and keeps the reference to
the KV of that half for as long as another engine may fetch it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Final, NamedTuple

from router.backends.vllm.disaggregation import LEASE_S, read_kv_params
from router.errors import quote_name
from router.fleet.engine_limits import OverLimit
from router.fleet.instance import Instance
from router.prompt.answer_model import AnswerModel
from router.prompt.broken_stream import end_broken_stream
from router.prompt.event_bytes import DONE, EVENT_END
from router.prompt.prompt import Endpoint
from router.prompt.stream_error import StreamError, is_clients_own
from router.prompt.usage import NO_USAGE, HideUsage, Usage, UsageTail
from router.proxy.call import ClientDisconnected
from router.proxy.disaggregated import PrefillResult
from router.proxy.engine_connection import ExchangeFailure
from router.proxy.relay import (
    RelayBroken,
    RelayCut,
    RelayDeadline,
    RelayEnd,
    RelayFinished,
    RelayNotStarted,
    RelayRejected,
)
from router.request.request import Request
from router.request.services import Services
from router.scheduling.policy.record import PrefillRecord
from router.scheduling.ticket import Ticket
from router.tenants.tenant import own_name

log = logging.getLogger("warmroute.request")

OTHER: Final = Endpoint.OTHER  # a constant, as Python 3.11 runs code at each access to a member of an Enum
RESPONSES: Final = Endpoint.RESPONSES
ENGINE_ERROR: Final = 500  # status of an error in a stream that names no status
MOVES_ALLOWED: Final = 2  # from stuck engines; the third engine's answer is waited for, as the request may be the cause


class PrefilledKv(NamedTuple):
    """KV that the engine of a Nixl prefill half holds under a lease and that has not been fetched yet."""

    params: bytes
    until_s: float
    leg: PrefillRecord


def rename_after(feed: Callable[[bytes], bytes] | None, rename: AnswerModel) -> Callable[[bytes], bytes]:
    """Return a function that passes pieces through `feed` (if not None), and then through `rename`."""
    return rename.feed if feed is None else lambda piece: rename.feed(feed(piece))


class ResponseObserver:
    """The observer of one attempt, to be used with `with`, so that a cancelled attempt (the client left) is
    recorded, too.
    """

    def __init__(self, ticket: Ticket, request: Request, services: Services) -> None:
        prompt = request.prompt
        self._ticket = ticket
        self._request = request
        self._services = services
        self._scheduler = services.scheduler
        self._tokenization = services.tokenization
        self._clock = services.clock
        self._tail = UsageTail(prompt.endpoint) if prompt.endpoint is not OTHER else None
        self._stream = request.stream
        self._hide = HideUsage() if prompt.hide_usage and self._stream is None else None
        self._feed: Callable[[bytes], bytes] | None = None if self._hide is None else self._hide.feed
        if self._stream is not None:
            self._feed = self._stream.feed
        self._rename = request.rename
        if self._rename is not None and not services.data_path.renames:
            self._rename = None
        if self._rename is not None:
            self._feed = rename_after(self._feed, self._rename)
        self._continues = ticket.attempt.continued_tokens is not None
        self._counts_events = request.counts_events and prompt.stream and self._stream is None
        self._follow = request.follow if prompt.stream else None
        self._half_end = False  # whether the last piece ended with the first line break of an event's end
        self._answering: Instance | None = None  # the instance that delivers the answer
        self._progress = ticket.target.progress
        self.begun = False  # the first byte of the answer has arrived
        self._wants_id = prompt.endpoint is RESPONSES  # True until the answer's id has passed
        self.prefilled: PrefilledKv | None = None

    def on_prefill_end(self, result: PrefillResult) -> None:
        """Settle the prefill half, which has ended; if it succeeded, its answer contains the usage."""
        usage = NO_USAGE
        if result.end == "ok":
            tail = UsageTail(self._request.prompt.endpoint)
            tail.feed(result.body)
            usage = tail.read_usage() or NO_USAGE
            params = read_kv_params(result.body)
            if params is not None and self._ticket.attempt.prefill is not None:
                self.prefilled = PrefilledKv(params, self._clock.now() + LEASE_S, self._ticket.attempt.prefill)
        self._scheduler.settle_prefill(self._ticket, result.end, result.status, usage)

    def on_first_byte(self, status: int) -> None:
        record = self._ticket.record
        self.begun = True
        self._ticket.status = record.status = status
        self._scheduler.on_first_byte(self._ticket)
        if self._tail is not None and status < 400:
            self._answering = self._ticket.target.instance
            self._answering.delivered = True
        if self._continues:
            return
        record.ttft_ms = (self._clock.now() - record.arrived_s) * 1e3
        self._scheduler.on_ttft(record)
        for part in self._request.held:
            part.on_first_byte(self._ticket)

    def on_encoded(self, encoding: bytes) -> None:
        """Stop reading the answer, because it is compressed: it passes unread."""
        self._tail = self._hide = self._stream = self._feed = self._rename = None
        instance = self._ticket.target.instance
        detail = f"its answers have content-encoding {quote_name(encoding.decode('latin-1'))}, unasked: not read"
        if instance.limits.record(OverLimit("encoding", detail)):
            log.warning("instance %s: %s", instance.id, detail)

    def feed(self, data: bytes) -> bytes:
        """Process a piece of the answer, and return the bytes that the client may get now."""
        self._progress.pieces += 1
        if self._answering is not None:
            self._answering.delivered = True
        if self._tail is not None:
            self._tail.feed(data)
            if self._wants_id and (response_id := self._tail.response_id()) is not None:
                self._wants_id = False  # known from the first event on, so a running stream can be cancelled
                tenant = self._request.call.tenant
                name = "" if tenant is None else tenant.name
                self._scheduler.remember_response(own_name(tenant, response_id), self._ticket.target.id, name)
        if self._counts_events:
            lines = b"\n" + data if self._half_end else data
            self._request.events += lines.count(EVENT_END)
            self._half_end = (len(lines) - len(lines.rstrip(b"\n"))) % 2 == 1
        shown = data if self._feed is None else self._feed(data)
        if self._follow is not None:
            self._follow(self._request.passed_tokens)
        return shown

    def flush(self) -> bytes:
        """Return the bytes that were held back, to be sent now that the answer is complete."""
        held = b""
        if self._stream is not None:
            held = self._stream.flush()
        elif self._hide is not None:
            held = self._hide.end()
        return held if self._rename is None else self._rename.feed(held) + self._rename.flush()

    @property
    def stopped(self) -> bool:
        return self._stream is not None and self._stream.stopped

    def end_broken(self, failure: ExchangeFailure, last: bytes) -> bytes:
        """Return the events that end a broken stream in the client's dialect: the engine's own error report if it
        sent one.
        """
        if failure is ExchangeFailure.REPORTED and self._stream is not None and self._stream.reported:
            end = self._stream.reported + DONE  # after whole events
        else:
            code = "router_stopped" if failure is ExchangeFailure.STOPPED else "engine_failed"
            head, tail = (b"", b"") if self._tail is None else self._tail.ends()
            endpoint = self._request.prompt.endpoint
            end = end_broken_stream(endpoint, code, failure.value, last=last, head=head, tail=tail)
        return end if self._rename is None else self._rename.feed(end)

    def can_continue(self) -> bool:
        """Return whether another engine can continue the answer; if not, set the reason in the record."""
        self._ticket.record.uncontinued = refusal = self._find_refusal()
        return self._stream is not None and refusal is None

    def can_move(self) -> bool:
        """Return whether another engine can answer instead, or continue the answer, and nothing is done twice that
        shows.
        """
        request, attempts = self._request, self._ticket.record.attempts
        if len(attempts) > MOVES_ALLOWED:
            return False
        if self.begun:
            return self._stream is not None and request.prompt.stream and self._find_refusal() is None
        return request.may_run_twice

    def _find_refusal(self) -> str | None:
        """Return why no other engine can continue the answer; None if one can."""
        policy = self._ticket.record.policy
        refusal = self._request.prompt.uncontinuable if self._stream is None else self._stream.find_refusal()
        return "off" if refusal is None and policy is not None and not policy.continuation else refusal

    def on_end(self, end: RelayEnd) -> None:
        """Record in the ticket and the record how the relay ended."""
        ticket, record = self._ticket, self._ticket.record
        match end:
            case RelayFinished(connect_s=connect_s, usage=usage):
                record.stages.connect_ms = None if connect_s is None else connect_s * 1e3
                if (error := self._find_error()) is not None:
                    self._record_error(error)
                else:
                    ticket.end = "ok"
                    self._read_usage(usage)
            case RelayBroken(failure=ExchangeFailure.STUCK as failure):
                ticket.end = "stuck"
                record.error = failure.value
            case RelayBroken(failure=failure, connect_s=connect_s):
                record.stages.connect_ms = None if connect_s is None else connect_s * 1e3
                error = self._find_error() if failure is ExchangeFailure.REPORTED else None
                if error is not None:
                    self._record_error(error)
                else:
                    ticket.end = "broken"
                    record.error = failure.value
            case RelayCut() if self._tail is not None and self._tail.ended():
                ticket.end = "ok"  # as in `__exit__`
                self._read_usage()
            case RelayCut(detail=detail):
                ticket.end = "cut"
                record.error = detail
            case RelayDeadline():
                ticket.end = "deadline"
            case RelayRejected(refusal=refusal):
                ticket.end = "rejected"
                if self._continues:
                    ticket.status = refusal.status
                    if (error := self._find_error()) is not None:
                        ticket.status, record.error = error.status or ENGINE_ERROR, _describe(error)
            case RelayNotStarted(prefill=True):
                ticket.end = "prefill"
            case RelayNotStarted(reason="failed", refusal=refusal):
                ticket.end, ticket.status = "failed", ENGINE_ERROR if refusal is None else refusal.status
            case RelayNotStarted(reason="connect" | "busy" | "died" | "stuck" as reason):
                ticket.end = reason

    def _find_error(self) -> StreamError | None:
        """Return the error that the engine reported in a stream."""
        return None if self._tail is None or not self._ticket.record.stream else self._tail.read_error()

    def _record_error(self, error: StreamError) -> None:
        """Record an error that the engine reported in a stream, judged like an answer with the error's status."""
        ticket, record = self._ticket, self._ticket.record
        if is_clients_own(error):
            ticket.end, ticket.status, record.error = "rejected", error.status, error.message
            return
        ticket.end = "broken"
        self.can_continue()  # sets the reason in the record
        record.error = _describe(error)

    def __enter__(self) -> ResponseObserver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """If the client disconnects after the last event of a stream but before its end, count the request as
        answered, since the client got everything.
        """
        if kind in (asyncio.CancelledError, ClientDisconnected) and self._tail is not None and self._tail.ended():
            self._ticket.end = "ok"
            self._read_usage()

    def _read_usage(self, read: Usage | None = None) -> None:
        """Read the usage of the answer. `read` is the usage reported by a gateway, if the answer did not pass
        through the router.
        """
        record, served = self._ticket.record, self._request.served
        if self._tail is None or served is None:
            return
        if self._scheduler.selector.policy_set.needs_session:
            record.tool_call = self._tail.ends_in_tool_call()
        usage = self._tail.read_usage() or read
        if self._stream is not None:
            usage = self._stream.join_usage(usage)
        if usage is not None:
            record.prompt_tokens, record.cached_tokens, record.output_tokens = usage
            if (known := self._request.known) is not None:
                instance = self._ticket.target.instance.id
                self._tokenization.check_count(served.base, self._request.prompt, known, usage.prompt_tokens, instance)


def _describe(error: StreamError) -> str:
    return f"{ExchangeFailure.REPORTED.value}: {error.message}"
