"""One request, from the door to its end: the first file to read.

Top to bottom, one room per line: the lobby bounds what is in the house; the prompt is read once; its token ids and
block keys are found within a budget; then choose, book and relay until one engine has begun to answer. Choosing and
booking happen in one turn of the event loop, so no two requests decide on the same picture of the load. Whatever ends
the line (the answer's end, a dying engine, the client's leaving) gives the booking back exactly once.

What may be tried again: an engine that could not be reached or is full (503) has done nothing, so another is asked,
within the router's retry budget. One that took the request and died before its first byte may have died *of* it: one
more may try, a second death ends it with 502 and marks the record, so that a poison prompt does not walk through the
fleet. That one retry needs no budget: it is bounded by itself, and one engine's end must not fail the hundred requests
that were waiting there. After a byte has gone to the client nothing is ever tried again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from router.blocks.events import TargetId
from router.blocks.known import Known
from router.clock import Clock
from router.config.schema import Config
from router.core import Core, Ticket
from router.decide.record import Record, Stages
from router.errors import BadGateway, DeadlineExceeded, NoTarget, NotFound, Refused
from router.feeds.health import Health
from router.fleet.instances import Served
from router.ledger.prometheus import Metrics
from router.ledger.ring import Ring
from router.lobby.lobby import Lobby
from router.lobby.retries import RetryBudget
from router.prompt.prompt import Endpoint, Prompt, Unknown
from router.prompt.read import ReadOptions, read_prompt
from router.prompt.usage import HideUsage, UsageTail
from router.proxy.call import Call
from router.proxy.headers import Forwarded, HeaderRules
from router.proxy.relay import Broken, Deadline, End, Finished, NotStarted, Outgoing, relay
from router.proxy.upstream import Upstreams
from router.tokens.tokens import Tokens
from scorers.contract import Needs

STORED = "/v1/responses/{id}"  # as records and metrics name it
DEATHS_ALLOWED = 1  # of engines that took the request: the second one ends it


@dataclass(frozen=True, slots=True)
class Rooms:
    """What a request passes through on its way."""

    config: Config
    clock: Clock
    core: Core
    lobby: Lobby
    retries: RetryBudget
    tokens: Tokens
    reading: ReadOptions  # of prompts, for policies that look at caches
    skimming: ReadOptions  # for those that do not
    header_rules: HeaderRules
    upstreams: Upstreams
    health: Health
    ring: Ring
    metrics: Metrics
    run_id: str  # begins the ids of all records of this process


async def route(call: Call, rooms: Rooms) -> None:
    """Answers `call`, or raises `Refused` while nothing has been sent."""
    with rooms.lobby.pass_() as place:
        started_at = rooms.clock.now()
        body = await call.body(rooms.config.limits.body_bytes, place)
        read_at = rooms.clock.now()
        prompt = read(call, body, rooms)
        stages = Stages(parse_ms=(rooms.clock.now() - read_at) * 1e3)
        served = served_by(prompt, rooms.core)
        known = await known_of(prompt, served, rooms)
        await on_record(call, prompt, served, known, stages, started_at, rooms)


async def route_stored(call: Call, response_id: str, rooms: Rooms) -> None:
    """A request about a stored response, which only the engine that made it knows."""
    if rooms.core.made_by(response_id) is None:
        raise NotFound(f"the response `{response_id}` is not known here", code="unknown_response")
    with rooms.lobby.pass_() as place:
        started_at = rooms.clock.now()
        body = await call.body(rooms.config.limits.body_bytes, place)
        about = Unknown("endpoint")
        prompt = Prompt(Endpoint.OTHER, STORED, None, body, about, previous_response_id=response_id)
        await on_record(call, prompt, None, about, Stages(), started_at, rooms)


async def on_record(
    call: Call,
    prompt: Prompt,
    served: Served | None,
    known: Known | Unknown,
    stages: Stages,
    started_at: float,
    rooms: Rooms,
) -> None:
    """Place and relay, with a record that is open while the request is under way and complete when it leaves."""
    record = open_record(call, prompt, known, stages, started_at, rooms)
    try:
        await place_and_relay(call, prompt, served, known, record, rooms)
    finally:
        close_record(record, rooms)


async def place_and_relay(
    call: Call, prompt: Prompt, served: Served | None, known: Known | Unknown, record: Record, rooms: Rooms
) -> None:
    """Choose, book, relay; again while that is allowed."""
    headers = rooms.header_rules.forward(call.headers, record.id)
    only = pinned(prompt.previous_response_id, rooms.core)
    ids = known if isinstance(known, Known) else None
    failed: set[str] = set()
    last: End | None = None
    rooms.retries.request()
    while last is None or may_retry(last, record, rooms.retries):
        ticket = rooms.core.admit(record, prompt, served, ids, excluding=failed, only=only)
        if ticket is None:
            break
        try:
            watch = Watch(ticket, prompt, served, known, rooms)
            last = await relay(
                call, rooms.upstreams, outgoing(call, prompt, headers, ticket, rooms), rooms.config.limits, watch
            )
            watch.ended(last)
        except asyncio.CancelledError:
            watch.left()
            raise
        finally:
            rooms.core.settle(ticket)
        if not isinstance(last, NotStarted):
            break
        failed.add(ticket.target.id)
        if last.reason != "busy":
            rooms.health.suspect(ticket.target.instance.id)
    if not isinstance(last, Finished | Broken):
        await refuse(call, last, record)


def read(call: Call, body: bytes, rooms: Rooms) -> Prompt:
    content_type = call.header(b"content-type")
    session = call.header(b"x-session-id")
    return read_prompt(
        call.path,
        content_type.decode("latin-1") if content_type else None,
        body,
        rooms.reading if Needs.CACHE in rooms.core.desk.needs else rooms.skimming,
        session_header=session.decode("latin-1") if session else None,
    )


def served_by(prompt: Prompt, core: Core) -> Served | None:
    """What the model's name means; None where the request names no model, which only load-placed endpoints may."""
    if prompt.model is None:
        return None
    served = core.fleet.resolve(prompt.model)
    if served is None:
        names = ", ".join(sorted(card.id for card in core.fleet.models())) or "none yet"
        raise NotFound(
            f"the model `{prompt.model}` does not exist; models here: {names}", param="model", code="model_not_found"
        )
    return served


async def known_of(prompt: Prompt, served: Served | None, rooms: Rooms) -> Known | Unknown:
    """Token ids and block keys, when a policy in use looks at caches."""
    if isinstance(prompt.source, Unknown):
        return prompt.source
    if served is None:
        return Unknown("no_model")
    core = rooms.core
    instances: list[str] = []
    if rooms.tokens.asks(served.base):
        candidates = core.fleet.candidates(served.base, (), rooms.clock.now())
        instances = list(dict.fromkeys(target.instance.id for target in candidates))
    sizes = core.block_sizes(served.base)
    return await rooms.tokens.of(prompt, served.base, served.adapter, sizes, instances)


def pinned(response_id: str | None, core: Core) -> TargetId | None:
    """Responses are state of the engine that made them: a follow-up must go there. None: anywhere.

    An id that we do not remember goes anywhere too: the engine that gets it knows best what to say of it.
    """
    return None if response_id is None else core.made_by(response_id)


def may_retry(last: End, record: Record, retries: RetryBudget) -> bool:
    """A death is paid for with the record, everything else from the router's budget."""
    if not isinstance(last, NotStarted):
        return False
    return deaths(record) <= DEATHS_ALLOWED if last.reason == "died" else retries.take()


def deaths(record: Record) -> int:
    return sum(attempt.end == "died" for attempt in record.attempts)


def outgoing(call: Call, prompt: Prompt, headers: Forwarded, ticket: Ticket, rooms: Rooms) -> Outgoing:
    target = ticket.target
    return Outgoing(
        instance=target.instance.id,
        target=target.id,
        record=ticket.record.id,
        method=call.method,
        path=call.target,
        headers=headers,
        body=prompt.body,
        rank=target.rank if target.instance.has_ranks else None,
        hides=prompt.hide_usage,
        anthropic=prompt.endpoint is Endpoint.MESSAGES,
    )


async def refuse(call: Call, last: End | None, record: Record) -> None:
    """Nothing was sent, and nobody is left to try: the client gets the reason."""
    match last:
        case None:
            refusal: Refused = NoTarget("no engine can serve this model now; try again", retry_after_s=1)
        case Deadline():
            refusal = DeadlineExceeded("the engine did not begin to answer in time")
        case NotStarted("busy", refusal=answer) if answer is not None:
            record.status = answer.status
            await call.answer(answer.status, answer.headers, answer.body)
            return
        case NotStarted("died"):
            record.poison = deaths(record) > DEATHS_ALLOWED
            refusal = BadGateway("the engine took the request and died before it answered", code="engine_died")
        case _:
            refusal = NoTarget("no engine could be reached; try again", retry_after_s=1)
    record.status, record.error = refusal.status, refusal.message
    raise refusal


class Watch:
    """Sees the answer pass by: when it began, what it cost, and the one chunk that the client must not see."""

    def __init__(
        self, ticket: Ticket, prompt: Prompt, served: Served | None, known: Known | Unknown, rooms: Rooms
    ) -> None:
        self._ticket = ticket
        self._served = served
        self._known = known
        self._rooms = rooms
        self._tail = UsageTail(prompt.endpoint) if prompt.endpoint is not Endpoint.OTHER else None
        self._hide = HideUsage() if prompt.hide_usage else None
        self._unnamed = prompt.endpoint is Endpoint.RESPONSES  # until the answer's id has passed

    def first_byte(self, status: int) -> None:
        record = self._ticket.record
        self._ticket.status = record.status = status
        record.ttft_ms = (self._rooms.clock.now() - record.arrived_s) * 1e3
        self._rooms.core.first_byte(self._ticket)

    def feed(self, data: bytes) -> bytes:
        if self._tail is not None:
            self._tail.feed(data)
            if self._unnamed and (response_id := self._tail.response_id()) is not None:
                self._unnamed = False  # known from its first event on: a stream can be cancelled while it runs
                self._rooms.core.remember_response(response_id, self._ticket.target.id)
        return data if self._hide is None else self._hide.feed(data)

    def last(self) -> bytes:
        """What was held back and may go out now that the answer is over."""
        return b"" if self._hide is None else self._hide.end()

    def left(self) -> None:
        """The client has gone. Some hang up on the stream's last word, before its end: they got all they wanted."""
        if self._tail is not None and self._tail.whole():
            self._ticket.end = "ok"
            self._read_tail()

    def ended(self, end: End) -> None:
        """The relay is over: what it came to goes into the ticket and the record."""
        ticket, record = self._ticket, self._ticket.record
        match end:
            case Finished(connect_s=connect_s):
                ticket.end = "ok"
                record.stages.connect_ms = connect_s * 1e3
                self._read_tail()
            case Broken(trouble=trouble, connect_s=connect_s):
                ticket.end = "broken"
                record.stages.connect_ms = connect_s * 1e3
                record.error = trouble.value
            case Deadline():
                ticket.end = "deadline"
            case NotStarted(reason=reason):
                ticket.end = reason

    def _read_tail(self) -> None:
        record = self._ticket.record
        if self._tail is None or self._served is None:
            return
        if (usage := self._tail.usage()) is not None:
            record.prompt_tokens, record.cached_tokens, record.output_tokens = usage
            self._rooms.tokens.observed(self._served.base, self._known, usage.prompt_tokens)


def open_record(
    call: Call, prompt: Prompt, known: Known | Unknown, stages: Stages, started_at: float, rooms: Rooms
) -> Record:
    """The request's record, there to be looked at while the request is under way."""
    number = rooms.core.desk.next_number()
    record = Record(
        id=f"{rooms.run_id}-{number}",
        number=number,
        arrived_s=started_at,
        at_wall_s=rooms.clock.wall(),
        endpoint=prompt.path,
        model=prompt.model or "",
        stream=prompt.stream,
        tokens_from=known.reason if isinstance(known, Unknown) else known.how,
        prompt_tokens_counted=len(known.ids) if isinstance(known, Known) and known.complete else None,
        stages=stages,
    )
    if isinstance(known, Known):
        stages.tokens_ms, stages.keys_ms = known.tokens_ms, known.keys_ms
    call.recorded = True
    rooms.ring.add(record)
    rooms.metrics.started()
    return record


def close_record(record: Record, rooms: Rooms) -> None:
    record.duration_ms = (rooms.clock.now() - record.arrived_s) * 1e3
    record.done = True
    rooms.metrics.finished(record)
