"""One request, from the door to its end: the first file to read.

Top to bottom, one room per line: the lobby bounds what is in the house; the prompt is read once; its token ids and
block keys are found within a budget; where sessions are admitted, it waits until there is room for its own; then
choose, book and relay until one engine has begun to answer. Choosing and booking happen in one turn of the event loop,
so no two requests decide on the same picture of the load. Whatever ends the line (the answer's end, a dying engine, the
client's leaving) gives the booking back exactly once.

What may be tried again: an engine that could not be reached or is full (503) has done nothing, so another is asked,
within the router's retry budget. One that took the request and died before its first byte may have died *of* it: one
more may try, a second death ends it with 502 and marks the record, so that a poison prompt does not walk through the
fleet. That one retry needs no budget: it is bounded by itself, and one engine's end must not fail the hundred requests
that were waiting there. After a byte has gone to the client nothing is ever tried again.

A pair is one attempt with two engines (`proxy/disaggregated.py`). Where its prefill half fails, another pair is tried,
and after the second failure the answering engine computes the prompt itself: bounded by itself again, so without the
budget.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import NamedTuple

from router.backends.feeds.health import HealthProbe
from router.backends.kv_store import KvStore
from router.backends.token_ids.passthrough import PassthroughOffer, TokenIdPassthrough
from router.backends.vllm.disaggregation import NIXL_PREFILL, can_split, decode_body, mooncake_params, prefill_body
from router.clock import Clock
from router.config.schema import Config
from router.errors import BadGateway, DeadlineExceeded, NoTarget, NotFound, RequestRefused
from router.fleet.instance import ServedModel
from router.kvcache.events import TargetId
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.api.parse import ReadOptions, read_prompt
from router.prompt.prompt import Endpoint, Prompt, UnknownIds
from router.prompt.request_headers import wishes
from router.prompt.tokenization.tokenization import Tokenization
from router.proxy.call import ClientRequest
from router.proxy.disaggregated import PrefillLeg, relay_after, relay_beside
from router.proxy.headers import ForwardedHeaders, HeaderRules
from router.proxy.relay import (
    OutgoingRequest,
    RelayBroken,
    RelayDeadline,
    RelayEnd,
    RelayFinished,
    RelayNotStarted,
    RelayRejected,
    relay,
)
from router.proxy.upstreams import UpstreamRequest, Upstreams
from router.request.admin_tokens import AdminTokens
from router.request.admission.waiting import AdmissionLease, AdmissionQueues
from router.request.concurrency import ConcurrencyLimiter
from router.request.experiment_unit import derive_unit
from router.request.policy_override import PolicyOverride, read_override
from router.request.response_observer import HandedOverKv, ResponseObserver
from router.request.retry_budget import RetryBudget
from router.request.token_ids import asking, counted, offer_to
from router.scheduling.policy.record import DEATHS_ALLOWED, PREFILLS_ALLOWED, Record, Stages
from router.scheduling.scheduler import Scheduler
from router.scheduling.ticket import PrefillBooking, Ticket
from router.telemetry.decision_log.writer import DecisionLogWriter
from router.telemetry.metrics.prometheus import Metrics
from router.telemetry.recent_records import RecentRecords
from scorers.contract import Needs, PoolHit

STORED = "/v1/responses/{id}"  # as records and metrics name it
LEDGER_BLOCK_TOKENS = 512  # as in the Mooncake traces


@dataclass(frozen=True, slots=True)
class Services:
    """What a request passes through on its way."""

    config: Config
    clock: Clock
    core: Scheduler
    lobby: ConcurrencyLimiter
    waiting: AdmissionQueues
    retries: RetryBudget
    tokens: Tokenization
    handing: TokenIdPassthrough
    pool: KvStore
    reading: ReadOptions  # of prompts, for policies that look at caches
    skimming: ReadOptions  # for those that do not
    header_rules: HeaderRules
    upstreams: Upstreams
    health: HealthProbe
    ring: RecentRecords
    decision_log: DecisionLogWriter | None
    metrics: Metrics
    admins: AdminTokens
    run_id: str  # begins the ids of all records of this process


class PreparedRequest(NamedTuple):
    """What is known of a request before anybody is chosen for it."""

    prompt: Prompt
    served: ServedModel | None  # None: it names no model
    known: TokenizedPrompt | UnknownIds
    pooled: PoolHit | None = None
    wanted: PolicyOverride | None = None
    seat: AdmissionLease | None = None  # where a door keeps count of sessions


@dataclass(slots=True)
class EarlierAttempts:
    """What earlier attempts at a request leave to the next one."""

    failed: set[str]
    handed: HandedOverKv | None = None


async def route(call: ClientRequest, rooms: Services) -> None:
    """Answers `call`, or raises `RequestRefused` while nothing has been sent."""
    with rooms.lobby.pass_() as place:
        started_at = rooms.clock.now()
        wanted = read_override(call.header, rooms.admins, rooms.core.selector.policy_set.policies)
        body = await call.body(rooms.config.limits.body_bytes, place)
        read_at = rooms.clock.now()
        prompt = read(call, body, wanted, rooms)
        stages = Stages(parse_ms=(rooms.clock.now() - read_at) * 1e3)
        served = resolve_model(prompt, rooms.core)
        known = await known_of(prompt, served, rooms)
        with await rooms.waiting.acquire(prompt, served, known) as seat:
            pooled = (
                await pooled_of(prompt, served, known, wanted, stages, rooms)
                if isinstance(known, TokenizedPrompt)
                else None
            )
            await on_record(
                call, PreparedRequest(prompt, served, known, pooled, wanted, seat), stages, started_at, rooms
            )


async def route_stored(call: ClientRequest, response_id: str, rooms: Services) -> None:
    """A request about a stored response, which only the engine that made it knows."""
    if rooms.core.response_target(response_id) is None:
        raise NotFound(f"the response `{response_id}` is not known here", code="unknown_response")
    with rooms.lobby.pass_() as place:
        started_at = rooms.clock.now()
        body = await call.body(rooms.config.limits.body_bytes, place)
        about = UnknownIds("endpoint")
        prompt = Prompt(Endpoint.OTHER, STORED, None, body, about, previous_response_id=response_id)
        await on_record(call, PreparedRequest(prompt, None, about), Stages(), started_at, rooms)


async def on_record(
    call: ClientRequest, request: PreparedRequest, stages: Stages, started_at: float, rooms: Services
) -> None:
    """Place and relay, with a record that is open while the request is under way and complete when it leaves."""
    record = open_record(call, request, stages, started_at, rooms)
    try:
        place(request, record, rooms)
        await place_and_relay(call, request, record, rooms)
    finally:
        close_record(record, rooms)


async def place_and_relay(call: ClientRequest, request: PreparedRequest, record: Record, rooms: Services) -> None:
    """Choose, book, relay; again while that is allowed."""
    headers = rooms.header_rules.forward(call.headers, record.id)
    only = locate_response(request.prompt.previous_response_id, rooms.core)
    splits = only is None and bool(rooms.core.peers) and can_split(request.prompt.endpoint, request.prompt.body)
    tries = EarlierAttempts(failed=set())
    last: RelayEnd | None = None
    rooms.retries.request()
    while last is None or may_retry(last, record, rooms.retries):
        ticket = rooms.core.admit(
            record,
            request.prompt,
            request.served,
            request.known if isinstance(request.known, TokenizedPrompt) else None,
            request.pooled,
            excluding=tries.failed,
            only=only,
            splits=splits and record.failed_prefills < PREFILLS_ALLOWED,
            handed=tries.handed.leg if tries.handed is not None else None,
        )
        if ticket is None:
            break
        last = await attempt(call, request, headers, ticket, tries, rooms)
        if not isinstance(last, RelayNotStarted):
            break
    if not isinstance(last, RelayFinished | RelayBroken):
        refuse(call, last, record)


async def attempt(
    call: ClientRequest,
    request: PreparedRequest,
    headers: ForwardedHeaders,
    ticket: Ticket,
    tries: EarlierAttempts,
    rooms: Services,
) -> RelayEnd:
    """One engine, or a pair of them. Whatever happens, what was booked for it is given back."""
    watch = ResponseObserver(
        ticket, request.prompt, request.served, request.known, rooms.core, rooms.tokens, rooms.clock
    )
    offer = offer_to(rooms.handing, ticket, request.prompt, request.served, request.known)
    try:
        out = outgoing(call, request.prompt, headers, ticket)
        end = await send(call, out, ticket, tries.handed, offer, watch, rooms)
        watch.ended(end)
    except asyncio.CancelledError:
        watch.left()
        raise
    finally:
        counted(rooms.handing, offer, ticket)
        rooms.core.settle(ticket)
    if isinstance(end, RelayNotStarted):
        tries.handed = still_there(watch.handed or tries.handed, end, rooms.clock.now())
        culprit = ticket.prefill.target if end.prefill and ticket.prefill is not None else ticket.target
        tries.failed.add(culprit.id)
        if end.reason != "busy":
            rooms.health.suspect(culprit.instance.id)
    return end


def send(
    call: ClientRequest,
    out: OutgoingRequest,
    ticket: Ticket,
    handed: HandedOverKv | None,
    offer: PassthroughOffer | None,
    watch: ResponseObserver,
    rooms: Services,
) -> Awaitable[RelayEnd]:
    """As this attempt needs it: to one engine, or to a pair in the way that theirs is handed over."""
    limits, half = rooms.config.limits, ticket.prefill
    upstreams = asking(rooms.handing, offer, ticket, rooms.upstreams, out.body)
    if half is None:
        if handed is not None:
            out = out._replace(body=decode_body(out.body, handed.params))
        return relay(call, upstreams, out, limits, watch)
    if (peer := rooms.core.peers.mooncake_peer(half.target)) is None:
        return relay_after(call, upstreams, prefill_of(out, half, NIXL_PREFILL), out, limits, watch)
    transfer_id = f"xfer-{ticket.record.id}-{len(ticket.record.attempts)}"  # of this attempt only
    params = mooncake_params(transfer_id, peer.bootstrap_url, peer.engine_id)
    prefill = prefill_of(out, half, params.prefill)
    out = out._replace(body=decode_body(out.body, params.decode))
    return relay_beside(call, upstreams, prefill, out, limits, watch)


def read(call: ClientRequest, body: bytes, wanted: PolicyOverride | None, rooms: Services) -> Prompt:
    """As much of the prompt as the policies in use look at."""
    looks_at_caches = rooms.core.selector.policy_set.needs_cache or (wanted is not None and wanted.policy.needs_cache)
    return read_prompt(
        call.path,
        call.text(b"content-type"),
        body,
        rooms.reading if looks_at_caches else rooms.skimming,
        wishes(call.fields),
    )


def resolve_model(prompt: Prompt, core: Scheduler) -> ServedModel | None:
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


async def known_of(prompt: Prompt, served: ServedModel | None, rooms: Services) -> TokenizedPrompt | UnknownIds:
    """Token ids and block keys, when a policy in use looks at caches."""
    if isinstance(prompt.source, UnknownIds):
        return prompt.source
    if served is None:
        return UnknownIds("no_model")
    core = rooms.core
    instances: list[str] = []
    if rooms.tokens.asks(served.base):
        candidates = core.fleet.candidates(served.base, (), rooms.clock.now())
        instances = list(dict.fromkeys(target.instance.id for target in candidates))
    sizes = core.block_sizes(served.base)
    return await rooms.tokens.of(prompt, served.base, served.adapter, sizes, instances)


async def pooled_of(
    prompt: Prompt,
    served: ServedModel | None,
    known: TokenizedPrompt,
    wanted: PolicyOverride | None,
    stages: Stages,
    rooms: Services,
) -> PoolHit | None:
    """What the shared pool holds of it, when a policy in use wants to know. None: unknown."""
    needs = rooms.core.selector.needs if wanted is None else rooms.core.selector.needs | wanted.policy.needs
    if served is None or Needs.POOL not in needs:
        return None
    asked_at = rooms.clock.now()
    held = await rooms.pool.held(known, rooms.core.hash_inputs(prompt, served))
    stages.pool_ms = (rooms.clock.now() - asked_at) * 1e3
    return held


def locate_response(response_id: str | None, core: Scheduler) -> TargetId | None:
    """Responses are state of the engine that made them: a follow-up must go there. None: anywhere.

    An id that we do not remember goes anywhere too: the engine that gets it knows best what to say of it.
    """
    return None if response_id is None else core.response_target(response_id)


def may_retry(last: RelayEnd, record: Record, retries: RetryBudget) -> bool:
    """A death is paid for with the record, a prefill half by splitting no more, the rest from the router's budget."""
    if not isinstance(last, RelayNotStarted):
        return False
    if last.reason == "died":
        return record.deaths <= DEATHS_ALLOWED
    return last.prefill or retries.take()


def still_there(handed: HandedOverKv | None, end: RelayNotStarted, now: float) -> HandedOverKv | None:
    """Handed-over KV that another engine may fetch: one that took the request may have fetched and so freed it, and
    one that turned it away lets it go.
    """
    return handed if handed is not None and end.reason == "connect" and now < handed.until_s else None


def outgoing(call: ClientRequest, prompt: Prompt, headers: ForwardedHeaders, ticket: Ticket) -> OutgoingRequest:
    target = ticket.target
    return OutgoingRequest(
        instance=target.instance.id,
        target=target.id,
        record=ticket.record.id,
        method=call.method,
        path=call.target,
        headers=headers,
        body=prompt.body,
        rank=target.rank if target.instance.has_ranks else None,
        hides=prompt.hide_usage,
        endpoint=prompt.endpoint,
        waited_ms=ticket.record.stages.admission_ms,
    )


def prefill_of(out: OutgoingRequest, half: PrefillBooking, params: bytes) -> PrefillLeg:
    """The prefill half of what goes out to the answering target."""
    target = half.target
    rank = target.rank if target.instance.has_ranks else None
    body = prefill_body(out.endpoint, out.body, params)
    question = UpstreamRequest(out.method, out.path, out.headers, body, rank)
    return PrefillLeg(target.instance.id, target.id, out.record, out.endpoint, question)


def refuse(call: ClientRequest, last: RelayEnd | None, record: Record) -> None:
    """Nothing was sent, and nobody is left to try: the client gets the reason."""
    match last:
        case None:
            refusal: RequestRefused = NoTarget("no engine can serve this model now; try again", retry_after_s=1)
        case RelayDeadline():
            refusal = DeadlineExceeded("the engine did not begin to answer in time")
        case RelayNotStarted("busy", refusal=answer) | RelayRejected(answer) if answer is not None:
            record.status = answer.status
            call.answer(answer.status, answer.headers, answer.body)
            return
        case RelayNotStarted("died"):
            record.poison = record.deaths > DEATHS_ALLOWED
            refusal = BadGateway("the engine took the request and died before it answered", code="engine_died")
        case _:
            refusal = NoTarget("no engine could be reached; try again", retry_after_s=1)
    record.status, record.error = refusal.status, refusal.message
    raise refusal


def place(request: PreparedRequest, record: Record, rooms: Services) -> None:
    """What decides for this request, from its first attempt to its last."""
    experiment = rooms.core.selector.policy_set.experiment
    if request.wanted is not None:
        record.policy, record.asked_by = request.wanted
    elif experiment is None or record.endpoint == STORED:
        rooms.core.assign_policy(record, None)
    else:
        unit = derive_unit(experiment, request.prompt, record.client, record.id, record.at_wall_s)
        rooms.core.assign_policy(record, unit)


def open_record(
    call: ClientRequest, request: PreparedRequest, stages: Stages, started_at: float, rooms: Services
) -> Record:
    """The request's record, there to be looked at while the request is under way."""
    prompt, known = request.prompt, request.known
    number = rooms.core.selector.next_number()
    record = Record(
        id=f"{rooms.run_id}-{number}",
        number=number,
        arrived_s=started_at,
        at_wall_s=rooms.clock.wall(),
        endpoint=prompt.path,
        model=prompt.model or "",
        stream=prompt.stream,
        client=call.client,
        tokens_from=known.reason if isinstance(known, UnknownIds) else known.how,
        prompt_tokens_counted=len(known.ids) if isinstance(known, TokenizedPrompt) and known.complete else None,
        stages=stages,
    )
    if request.seat is not None:
        request.seat.record = record
        stages.admission_ms = None if request.seat.waited_s is None else request.seat.waited_s * 1e3
    if isinstance(known, TokenizedPrompt):
        stages.tokens_ms, stages.keys_ms = known.tokens_ms, known.keys_ms
        if rooms.decision_log is not None:
            record.blocks = known.every(LEDGER_BLOCK_TOKENS)
    call.recorded = True
    rooms.ring.add(record)
    rooms.metrics.started()
    return record


def close_record(record: Record, rooms: Services) -> None:
    record.duration_ms = (rooms.clock.now() - record.arrived_s) * 1e3
    record.done = True
    rooms.metrics.finished(record)
    rooms.core.complete(record)
    if rooms.decision_log is not None:
        rooms.decision_log.add(record)
