"""The data path of a picker: the gateway receives the chosen endpoint, sends the request there, and reports the
answer.

The gateway reports what a proxy would observe itself: the head and the pieces of an answer, or its first piece and
later an entry of the access log. When a gateway reports that it could not reach the engine, it has already answered
its client: the router does not retry, but the record, the breaker and the health check are updated. If the gateway
used another engine of the list that it received, that engine's part is booked and recorded as a second attempt.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextlib import nullcontext
from functools import lru_cache
from ipaddress import ip_address

from router.backends.token_ids.passthrough import TokenIdPassthrough
from router.backends.vllm.token_ids import add_ids
from router.config.sections.base import split_base_url
from router.fleet.fleet import Fleet
from router.fleet.instance import Target
from router.kvcache.events import TargetId
from router.picker.answer_end import AnswerEnd
from router.picker.answer_log import AnswerLog, LoggedEnd, OpenAnswer
from router.picker.exchange import PickerExchange
from router.picker.messages import Choice
from router.picker.names import DESTINATION, PREFILLER
from router.prompt.prompt import Prompt
from router.proxy.call import ClientDisconnected, ClientRequest
from router.proxy.disaggregated import PrefillResult
from router.proxy.engine_connection import ExchangeFailure
from router.proxy.headers import HeaderRules
from router.proxy.relay import (
    EngineRefusal,
    RelayBroken,
    RelayCut,
    RelayDeadline,
    RelayEnd,
    RelayFinished,
    RelayNotStarted,
    RelayRejected,
)
from router.request.data_path import AttemptWatch, label_answer
from router.request.request import Request
from router.request.token_ids import AttemptPassthrough, offer_token_ids
from router.scheduling.ticket import Ticket
from router.telemetry.trace_context import attempt_number

log = logging.getLogger("warmroute.picker")

MAX_ENDPOINTS = 4096  # number of cached endpoints of present and past engines
CUT_LOG_S = 2.0  # how long to wait for the log entry of an exchange that was cut
KEY_BYTES = 8


class PickerPath:
    """The `DataPath` (`data_path.py`) of a picker. `fallbacks` is the number of endpoints listed after the chosen
    one; `credentials` returns the `authorization` header for an instance; `on_moved` is called when another
    endpoint than the chosen one answers.
    """

    def __init__(
        self,
        fleet: Fleet,
        passthrough: TokenIdPassthrough,
        header_rules: HeaderRules,
        answer_log: AnswerLog,
        credentials: Callable[[str], bytes | None],
        on_moved: Callable[[], None],
        fallbacks: int,
    ) -> None:
        self._fleet = fleet
        self._passthrough = passthrough
        self._header_rules = header_rules
        self._log = answer_log
        self._credentials = credentials
        self._on_moved = on_moved
        self._fallbacks = fallbacks
        self._read_endpoint = lru_cache(MAX_ENDPOINTS)(read_endpoint)

    @property
    def renames(self) -> bool:
        return False  # the gateway has already sent the head, with the body's length

    @property
    def implies_model(self) -> bool:
        return False  # llm-d's picker rejects such a prompt

    def follow(self, prompt: Prompt) -> None:
        """Return None: the answer does not pass through the router."""

    def excludes(self, call: ClientRequest) -> set[str]:
        """Return the ids of the targets that are not among the endpoints that the gateway, or a test, allows."""
        assert isinstance(call, PickerExchange)
        if (allowed := call.subset) is None:
            return set()
        return {
            target.id
            for instance in self._fleet
            for target in instance.targets.values()
            if (endpoint := self._endpoint(target)) is None
            or (endpoint not in allowed and endpoint.rpartition(":")[0].strip("[]") not in allowed)
        }

    async def run(
        self, request: Request, ticket: Ticket, kv_transfer_params: bytes | None, watch: AttemptWatch
    ) -> RelayEnd:
        call = request.call
        assert isinstance(call, PickerExchange)
        offered = None if call.started else offer_token_ids(request, ticket, self._passthrough)
        with offered or nullcontext(), watch:
            endpoint = self._endpoint(ticket.target)
            if endpoint is None:
                end: RelayEnd = RelayNotStarted("connect", "a gateway takes an IP address, not a host name")
            else:
                choice = self._build_choice(call, request, ticket, endpoint, offered)
                labels = label_answer(request, ticket.record, ticket.target)
                headers = [(name.decode(), value) for name, value in labels.headers]
                with self._log.open(choice.key, call.gateway) as answer:
                    reported = await call.choose(choice, headers, _PairedWatch(ticket, watch))
                    end = await self._judge(reported, call, ticket, answer)
                if reported.status == 400 and offered is not None and ticket.attempt.token_id_passthrough:
                    offered.on_refusal(ticket.target.instance.id, call.first_piece)
            watch.on_end(end)
        return end

    def _build_choice(
        self,
        call: PickerExchange,
        request: Request,
        ticket: Ticket,
        endpoint: str,
        offered: AttemptPassthrough | None,
    ) -> Choice:
        target, record, body = ticket.target, ticket.record, request.prompt.body
        edits = self._header_rules.edit(call.headers)
        added: list[tuple[str, bytes]] = []
        if not edits.own_id:
            added.append(("x-request-id", record.id.encode()))
        if target.instance.has_ranks:
            added.append(("x-data-parallel-rank", b"%d" % target.rank))
        if (credentials := self._credentials(target.instance.id)) is not None:
            added.append(("authorization", credentials))
        if ticket.prefill is not None and (prefiller := self._endpoint(ticket.prefill.target)) is not None:
            added.append((PREFILLER, prefiller.encode()))
        if (trace := request.trace) is not None:
            added.append(("traceparent", trace.traceparent(attempt_number(len(record.attempts) - 1))))
        named = {DESTINATION, *(name for name, _ in added)}  # overwritten headers must not be removed as well
        removed = [name for name in edits.removed if name not in named]
        if trace is not None and trace.begun and b"tracestate" in call.fields:
            removed.append("tracestate")
        if offered is not None and target.instance.id in offered.instances and ticket.prefill is None:
            body = add_ids(body, offered.ids)
        elif offered is not None:
            ticket.attempt.token_id_passthrough = False
        key = f"{record.id}.{secrets.token_hex(KEY_BYTES)}"  # a sender of log entries must not guess it
        return Choice(",".join([endpoint, *self._next_best(ticket, endpoint)]), key, added, removed, body)

    def _next_best(self, ticket: Ticket, chosen: str) -> list[str]:
        """Return the endpoints to try if the chosen one fails, the cheapest first."""
        if not self._fallbacks or ticket.prefill is not None or ticket.target.instance.has_ranks:
            return []
        decision = ticket.attempt.decision
        found: list[str] = []
        for _, row in sorted(zip(decision.costs, decision.rows, strict=True), key=lambda pair: pair[0]):
            target = self._fleet.target(TargetId(row.target))
            endpoint = None if target is None or target.instance.has_ranks else self._endpoint(target)
            if endpoint is not None and endpoint != chosen and endpoint not in found:
                found.append(endpoint)
            if len(found) == self._fallbacks:
                break
        return found

    async def _judge(self, end: AnswerEnd, call: PickerExchange, ticket: Ticket, answer: OpenAnswer) -> RelayEnd:
        """Return the attempt's end, given the end of the exchange. Raises `ClientDisconnected` if the log reports
        that the client left.
        """
        record = ticket.record
        status = end.status or 0
        match end.kind:
            case "whole":
                return RelayFinished(status, None)
            case "left":
                return _judge_log(await answer.wait(), status)
            case "cut":
                return _judge_log(await self._wait_briefly(answer), status)
            case "late":
                return RelayDeadline()
            case "moved":
                self._on_moved()
                ticket.attempt.served = end.served
                moved_to = self._find(end.served)
                if moved_to is None:
                    record.status, record.error = status, f"the gateway used {end.served}, which is no engine here"
                return RelayNotStarted("connect", f"the gateway used {end.served}", moved_to=moved_to)
            case "connect" | "died" | "busy":
                record.status, record.error = status, end.detail
                ticket.status = status
                return RelayNotStarted(end.kind, end.detail)
            case "local":
                record.status, record.error = status, end.detail
                return RelayRejected(EngineRefusal(status, [], b""))

    async def _wait_briefly(self, answer: OpenAnswer) -> LoggedEnd | None:
        """Return the log entry of an exchange that was cut; None if its gateway sends no log, or not in time."""
        if not self._log.follows(answer.gateway):
            return None
        try:
            async with asyncio.timeout(CUT_LOG_S):
                return await answer.wait()
        except TimeoutError:
            return None

    def _find(self, endpoint: str | None) -> TargetId | None:
        """Return the target with this endpoint; None if no target has it, or several ranks share it."""
        for instance in self._fleet:
            for target in instance.targets.values():
                if self._endpoint(target) == endpoint:
                    return None if instance.has_ranks else target.id
        return None

    def _endpoint(self, target: Target) -> str | None:
        """Return the `ip:port` of a target; None if its URL has a host name."""
        return self._read_endpoint(target.instance.config.url)


class _PairedWatch:
    """Passes the observed answer on to a watch. The first byte ends the prefill half of a pair, which a sidecar
    ran.
    """

    __slots__ = ("_ticket", "_watch", "feed", "flush", "on_encoded")

    def __init__(self, ticket: Ticket, watch: AttemptWatch) -> None:
        self._ticket = ticket
        self._watch = watch
        self.feed, self.flush, self.on_encoded = watch.feed, watch.flush, watch.on_encoded

    def on_first_byte(self, status: int) -> None:
        if self._ticket.prefill is not None and status < 400:
            self._watch.on_prefill_end(PrefillResult("ok", status))
        self._watch.on_first_byte(status)


def read_endpoint(url: str) -> str | None:
    """Return the address and port of an engine's URL, an IPv6 address in brackets; None for a host name."""
    host, port = split_base_url(url)
    try:
        address = ip_address(host)
    except ValueError:
        log.warning("%s: gateways take engines by address, and this is a name", url)
        return None
    return f"{address}:{port}" if address.version == 4 else f"[{address}]:{port}"


def _judge_log(logged: LoggedEnd | None, status: int) -> RelayEnd:
    """Return how an answer ended according to its log entry. Raises `ClientDisconnected` if the client left."""
    if logged is None:
        return RelayCut("the gateway did not say how the answer ended")
    if logged.details == "via_upstream":
        return RelayFinished(status, None, logged.usage)
    if logged.details.startswith("downstream"):
        raise ClientDisconnected
    return RelayBroken(status, ExchangeFailure.CLOSED, None)
