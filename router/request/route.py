"""The path of one request, from its first byte to its end: the file to read first.

One step per line: a concurrency slot, which counts once the body is here, and room in its tenant's limits (or 429); the
body, read once into a `Prompt`; with `wake`, a wait until some instance serves the model; token ids and block keys,
found within a budget or unknown; what it will use of its tenant's limits, reserved (or 429); admission, where sessions
are admitted; the shared pool's answer; then choose, book and relay until one engine has begun to answer. Choosing and
booking happen in one turn of the event loop, so no two requests decide on the same view of the load. Whatever ends the
request (the answer's end, a dying engine, a client that disconnects) gives the booking back exactly once.

What is tried again: an engine that was not reached or is full (503) has done nothing, so another one is tried within
the router's retry budget. One that took the request and died before its first byte may have died *of* it: one more
engine is tried, a second death ends the request with 502 and marks its record, so that a poison prompt does not walk
through the fleet. That one retry takes nothing from the budget: it is bounded by itself, and the end of one engine must
not fail the hundred requests that waited there. After the first byte to the client nothing is tried again, but a stream
that breaks off may be carried on by another engine (`carry_on.py`).

A prefill/decode pair is one attempt with two engines (`proxy/disaggregated.py`). If its prefill half fails, another
pair is tried, and after the second failure the answering engine computes the prompt itself: bounded by itself again, so
without the budget.
"""

from __future__ import annotations

import asyncio
from typing import Final

from router.backends.vllm.disaggregation import can_split
from router.errors import (
    BadGateway,
    DeadlineExceeded,
    NoTarget,
    NotFound,
    RequestRefused,
    UnsupportedCoding,
    quote_name,
)
from router.fleet.instance import ServedModel
from router.kvcache.events import TargetId
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.api.parse import read_prompt, read_request_headers
from router.prompt.api.size_limits import LARGE_BODY_BYTES
from router.prompt.prompt import Endpoint, Prompt, UnknownIds
from router.proxy.call import ClientRequest, Headers
from router.proxy.headers import content_encoding
from router.proxy.relay import RelayBroken, RelayDeadline, RelayEnd, RelayNotStarted, RelayRejected
from router.request.admin_tokens import PolicyOverride, read_override
from router.request.admission.claim import cap_priority
from router.request.attempt import EarlierAttempts, attempt
from router.request.carry_on import carry_on
from router.request.concurrency import Slot
from router.request.experiment_unit import derive_unit
from router.request.model_names import NamedPrompt, check_allowed, name_model, resolve_model
from router.request.prepared_request import PreparedRequest, RequestTimes
from router.request.request_record import close_record, describe_tokens, open_record
from router.request.retry_budget import RetryBudget
from router.request.services import Services
from router.scheduling.availability import Unavailability
from router.scheduling.policy.record import DEATHS_ALLOWED, PREFILLS_ALLOWED, Record, Stages
from router.scheduling.scheduler import Scheduler
from router.telemetry.tracing.context import TraceContext
from router.tenants.ledger import Reservation
from router.tenants.tenant import Tenant, own_name
from router.tenants.token_counts import NO_TOKENS
from scorers.contract import Needs, PoolHit

STORED: Final = "/v1/responses/{id}"  # the endpoint's name in records and metrics
NOT_NEEDED: Final = UnknownIds("not_needed")


async def route(call: ClientRequest, services: Services) -> None:
    """Answer `call`. Raises `RequestRefused` while nothing has been sent."""
    if b"content-encoding" in call.fields:
        check_coding(call.headers)
    with services.limiter.open(call.sender) as slot, services.meter.open(call) as reservation:
        arrived_s = services.clock.now()
        override = read_override(call.fields, services.admin_tokens, services.scheduler.selector.policy_set.policies)
        body = await call.body(services.config.limits.body_bytes, slot)
        slot.take()
        read_s = services.clock.now()
        prompt = await parse(call, body, override, services)
        if prompt.previous_response_id is not None:
            await services.stored_responses.find(prompt.previous_response_id, call.tenant)
        if prompt.model is None:
            implied = services.data_path.implies_model
            name_model(prompt, services.scheduler.fleet, call.tenant, implied=implied)
        choice = None
        if services.models is None:
            check_allowed(prompt.model, call.tenant)
        else:
            prompt, choice = await services.models.resolve(
                prompt, body, call.tenant, lambda changed: parse(call, changed, override, services), call.sender
            )
        stages = Stages(parse_ms=(services.clock.now() - read_s) * 1e3)
        if services.waits is not None:
            await wait_for_model(prompt, call, slot, stages, services)
        times = RequestTimes(arrived_s, read_s)
        if services.adapters is None or not services.adapters.manages(prompt.model):
            await serve(call, NamedPrompt(prompt, choice), reservation, override, stages, times, services)
            return
        async with services.adapters.use(prompt.model):
            await serve(call, NamedPrompt(prompt, choice), reservation, override, stages, times, services)


async def serve(
    call: ClientRequest,
    named: NamedPrompt,
    reservation: Reservation | None,
    override: PolicyOverride | None,
    stages: Stages,
    times: RequestTimes,
    services: Services,
) -> None:
    """Answer a request that was read, the second half of `route`."""
    prompt, choice = named
    cap_priority(prompt, call.tenant)
    served = resolve_model(prompt, services.scheduler, choice)
    services.meter.begin_counting(reservation, prompt)
    tokens = await tokenize(prompt, served, override, call.tenant, call.sender, services)
    services.meter.reserve(call, reservation, prompt, tokens)
    with await services.admission.acquire(prompt, served, tokens, call.tenant, times.arrived_s) as lease:
        pool_hit = await query_pool(prompt, served, tokens, override, stages, services)
        trace = begin_trace(call, services)
        request = PreparedRequest(
            prompt,
            served,
            tokens,
            pool_hit,
            override,
            lease,
            trace,
            tenant=call.tenant,
            reservation=reservation,
            choice=choice,
        )
        await run_recorded(call, request, stages, times, services)


async def route_stored(call: ClientRequest, response_id: str, services: Services) -> None:
    """Answer a request about a stored response; only the engine that made it has it. Raises `NotFound` for an id that
    is unknown here, and `RequestRefused` while nothing has been sent.
    """
    # also where no token is left: it may cancel what runs
    with services.limiter.open(call.sender) as slot, services.meter.open(call, least=NO_TOKENS) as reservation:
        arrived_s = services.clock.now()
        if await services.stored_responses.find(response_id, call.tenant) is None:
            raise NotFound(f"the response `{quote_name(response_id)}` is not known here", code="unknown_response")
        body = await call.body(services.config.limits.body_bytes, slot)
        slot.take()
        times = RequestTimes(arrived_s, services.clock.now())
        unknown = UnknownIds("endpoint")
        prompt = Prompt(Endpoint.OTHER, STORED, None, body, unknown, previous_response_id=response_id)
        trace = begin_trace(call, services)
        request = PreparedRequest(prompt, None, unknown, trace=trace, tenant=call.tenant, reservation=reservation)
        await run_recorded(call, request, Stages(), times, services)


async def run_recorded(
    call: ClientRequest, request: PreparedRequest, stages: Stages, times: RequestTimes, services: Services
) -> None:
    """Place and relay, with a record that is open while the request runs and complete when it ends."""
    record = open_record(call, request, stages, times, services)
    stream = request.stream = services.data_path.follow(request.prompt)
    try:
        assign_policy(request, record, services)
        if request.choice is not None and services.models is not None:
            services.models.aliases.begin(request.choice, record, services.clock.now())
        services.retry_budget.deposit()
        await place_and_relay(call, request, record, services)
    finally:
        services.meter.settle(request, record)
        if stream is not None:
            stream.close()
        close_record(record, request, services)


async def place_and_relay(call: ClientRequest, request: PreparedRequest, record: Record, services: Services) -> None:
    """Choose, book, relay; again while that is allowed. Raises `RequestRefused` when no engine answered."""
    prompt, scheduler = request.prompt, services.scheduler
    only = locate_response(prompt, request.tenant, scheduler)
    splits = only is None and bool(scheduler.peers) and can_split(prompt.endpoint, prompt.body)
    earlier = EarlierAttempts(failed=services.data_path.excludes(call))
    known = request.tokens if isinstance(request.tokens, TokenizedPrompt) else None
    full = request.lease.full if request.lease is not None else frozenset[str]()
    last: RelayEnd | None = None
    while last is None or may_retry(last, record, services.retry_budget):
        ticket = scheduler.admit(
            record,
            prompt,
            request.served,
            known,
            request.pool_hit,
            excluding=earlier.failed | full if full else earlier.failed,
            only=earlier.moved_to or only,
            splits=splits and record.failed_prefills < PREFILLS_ALLOWED,
            handed=earlier.handed_over.leg if earlier.handed_over is not None else None,
        )
        if ticket is None and full:
            full = frozenset()  # no other engine takes it
            continue
        if ticket is None:
            break
        if request.lease is not None:
            request.lease.on_placed(ticket.target.id, record.attempts[-1].expected_tokens)
        last = await attempt(call, request, ticket, earlier, services)
        if not isinstance(last, RelayNotStarted) or (call.started and earlier.moved_to is None):
            break
    if not call.started and only is None and (other := await fall_back(request, last, record, services)) is not None:
        await place_and_relay(call, other, record, services)
    elif not call.started:
        refuse(call, last, record)
    elif isinstance(last, RelayBroken) and last.open:
        await carry_on(call, request, record, last, services)


async def fall_back(
    request: PreparedRequest, last: RelayEnd | None, record: Record, services: Services
) -> PreparedRequest | None:
    """Return the request for the next model of its alias, because no engine has begun to answer; None where it has no
    other, and where an engine may have died of the request.
    """
    reason: Unavailability | None = "no_instance" if last is None else None
    if isinstance(last, RelayNotStarted) and last.reason in ("busy", "connect"):
        reason = "busy" if last.reason == "busy" else "unreachable"
    models, before, now = services.models, request.choice, services.clock.now()
    if reason is None or models is None or before is None or record.deaths:
        return None
    if (choice := models.aliases.fall_back(before, reason, now, record.sender)) is None:
        return None
    models.aliases.leave(before, record, now)
    prompt, served = await models.fall_back(request.prompt, choice), services.scheduler.fleet.resolve(choice.model)
    tokens = await tokenize(prompt, served, request.override, request.tenant, record.sender or "", services)
    pool_hit = await query_pool(prompt, served, tokens, request.override, record.stages, services)
    record.model, record.revision, record.fallback = choice.model, None, choice.fallback
    record.tokens_from, record.prompt_tokens_counted = describe_tokens(tokens)
    return request.for_model(prompt, served, tokens, pool_hit, choice)


def check_coding(headers: Headers) -> None:
    """Raise `UnsupportedCoding` for a compressed body: engines take none, and its fields could not be checked here."""
    if coding := content_encoding(headers):
        name = quote_name(coding.decode("latin-1"))
        raise UnsupportedCoding(f"a body in `Content-Encoding: {name}` cannot be read: send it plain")


def begin_trace(call: ClientRequest, services: Services) -> TraceContext | None:
    """Return the request's place in a trace, continued from the client's where it sent one; None without tracing."""
    return None if services.tracing is None else services.tracing.begin(call.fields)


async def parse(call: ClientRequest, body: bytes, override: PolicyOverride | None, services: Services) -> Prompt:
    """Read what routing needs of the body; the prompt itself is left `Unread`. A large body is read in a thread, one at
    a time, as they would delay the event loop together.
    """
    chosen = services.scheduler.selector.policy_set if override is None else override.policy
    options = services.read_options if chosen.continuation else services.read_options.uncontinued
    scope = None if call.tenant is None else call.tenant.scope
    fields = call.path, call.text(b"content-type"), body, options, read_request_headers(call.fields), scope
    if len(body) <= LARGE_BODY_BYTES:
        return read_prompt(*fields)
    async with services.large_body:
        return await asyncio.to_thread(read_prompt, *fields)


async def wait_for_model(prompt: Prompt, call: ClientRequest, slot: Slot, stages: Stages, services: Services) -> None:
    """Return when an instance serves the prompt's model, or requests for it may not wait. Raises `NoTarget` when no
    instance comes, `NotFound` for a name that no instance can get.
    """
    waits = services.waits
    if prompt.model is None or waits is None:
        return
    needed = prompt.model if services.adapters is None else services.adapters.find_base(prompt.model)
    if waits.has_to_wait(needed):
        stages.wake_ms = await waits.wait(needed, call.sender, slot.held_bytes) * 1e3
    elif len(services.scheduler.fleet) == 0:  # which is no reason to try again, as it is without `wake`
        name = quote_name(prompt.model)
        raise NotFound(f"the model `{name}` does not exist", param="model", code="model_not_found")


async def tokenize(
    prompt: Prompt,
    served: ServedModel | None,
    override: PolicyOverride | None,
    tenant: Tenant | None,
    client: str,
    services: Services,
) -> TokenizedPrompt | UnknownIds:
    """Return token ids and block keys, or why they are unknown: as of a prompt that is certain to be longer than its
    tenant may send.
    """
    selector, fleet = services.scheduler.selector, services.scheduler.fleet
    if isinstance(prompt.source, UnknownIds):
        return prompt.source
    if served is None:
        return UnknownIds("no_model")
    if not (selector.policy_set.needs_cache or (override is not None and override.policy.needs_cache)):
        prompt.source = NOT_NEEDED
        return NOT_NEEDED
    instances: list[str] = []
    if services.tokenization.source(served.base, prompt.endpoint) == "remote":
        candidates = fleet.candidates(served.base, (), services.clock.now())
        instances = list(dict.fromkeys(target.instance.id for target in candidates))
    sizes = services.scheduler.block_sizes(served.base)
    longest, most = fleet.context_tokens(served.base), None if tenant is None else tenant.service_class.most_tokens
    if most is not None:
        longest = most if longest is None else min(longest, most)
    known = await services.tokenization.tokenize(
        prompt, served.base, served.adapter, sizes, instances, context_tokens=longest, client=client
    )
    if isinstance(known, TokenizedPrompt) and (missed := services.scheduler.indexer.missed).late:
        known = known._replace(origin=services.scheduler.hash_inputs(prompt.salt, served))
        for _ in missed.recall(known):
            await asyncio.sleep(0)
    return known


async def query_pool(
    prompt: Prompt,
    served: ServedModel | None,
    tokens: TokenizedPrompt | UnknownIds,
    override: PolicyOverride | None,
    stages: Stages,
    services: Services,
) -> PoolHit | None:
    """Return what the shared pool holds of the prompt, if a policy in use needs it; `None` when unknown."""
    selector = services.scheduler.selector
    needs = selector.needs if override is None else selector.needs | override.policy.needs
    if served is None or not isinstance(tokens, TokenizedPrompt) or Needs.POOL not in needs:
        return None
    started_s = services.clock.now()
    hit = await services.kv_store.lookup(tokens, services.scheduler.hash_inputs(prompt.salt, served))
    stages.pool_ms = (services.clock.now() - started_s) * 1e3
    return hit


def locate_response(prompt: Prompt, tenant: Tenant | None, scheduler: Scheduler) -> TargetId | None:
    """Return the target that made the response which a prompt goes on from; `None`: any target will do. That includes
    an id that is unknown here, as the engine that gets it knows best what to answer; but where tenants are kept apart
    it may be another one's, which engines cannot tell. Raises `NotFound` for that.
    """
    if (response_id := prompt.previous_response_id) is None:
        return None
    target = scheduler.response_target(own_name(tenant, response_id))
    if target is None and tenant is not None and tenant.scope is not None:
        raise NotFound(f"the response `{quote_name(response_id)}` is not known here", code="unknown_response")
    return target


def may_retry(last: RelayEnd, record: Record, retry_budget: RetryBudget) -> bool:
    """Return whether another engine may be tried: a death is bounded by the record, a failed prefill half by splitting
    no more, everything else by the router's retry budget.
    """
    if not isinstance(last, RelayNotStarted):
        return False
    if last.moved_to is not None:
        return True
    if last.reason == "died":
        return record.deaths <= DEATHS_ALLOWED
    return last.prefill or retry_budget.try_withdraw()


def refuse(call: ClientRequest, last: RelayEnd | None, record: Record) -> None:
    """Answer with an engine's own refusal where there is one. Raises `RequestRefused` otherwise."""
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


def assign_policy(request: PreparedRequest, record: Record, services: Services) -> None:
    """Fix the policy that decides for this request, from its first attempt to its last."""
    experiment = services.scheduler.selector.policy_set.experiment
    if request.override is not None:
        record.policy, record.asked_by = request.override
    elif experiment is None or record.endpoint == STORED:
        services.scheduler.assign_policy(record, None)
    else:
        arrived_wall_s = record.at_wall_s - (services.clock.now() - record.arrived_s)  # before any wait for admission
        conversations = services.scheduler.conversations
        unit = derive_unit(experiment, request.prompt, conversations, record.client, record.id, arrived_wall_s)
        services.scheduler.assign_policy(record, unit)
