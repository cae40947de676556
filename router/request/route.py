"""The path of one request, from its first byte to its end: the file to read first.

A request gets a concurrency slot, which counts once the request's body is complete, and passes its stages one after
the other (`stages.py`). Then an engine is chosen and booked, and the answer relayed; this is repeated on failures
until one engine has begun to answer. An engine is chosen and booked in one turn of the event loop, so no two
requests decide on the same view of the load. Whatever ends the request (the answer's end, a dying engine, a client
that disconnects), the booking is released exactly once, and everything that the stages hold is released.

Retries: connection failures and 503 are retried on another engine, within the router's retry budget, because the
engine has done no work. If an engine took the request and died before its first byte, the request may be the cause:
one more engine is tried, and a second death ends the request with 502 and marks its record, so that a poison prompt
does not kill one engine after another; `features/poison` then refuses it for a while. This single retry does not
count against the budget: there is at most one, and the death of one engine must not fail the hundred requests that
waited for that engine. After the first byte to the client, the request is not retried.

A 500, 502 or 504 is retried once as well, because an engine may be broken and still answer its probes, but within
the budget: a request that is the cause gets it from every engine. The second one is sent to the client, and
`features/poison` remembers the prompt, whose next 5xx is not retried.

An engine that has the request and makes no progress is given up (`stuck_engines.py`), twice per request at most. The
next engine does not count against the budget either.

A prefill/decode pair is one attempt with two engines (`proxy/disaggregated.py`). If the prefill half fails, another
pair is tried, and after the second failure the answering engine computes the prompt itself. These retries are
bounded as well, so they do not count against the budget.

After the retries come recoveries, each where it applies: the next model of an alias, or another engine that
continues a broken stream.
"""

from __future__ import annotations

from collections.abc import Sequence

from router.backends.vllm.disaggregation import can_split
from router.errors import BadGateway, DeadlineExceeded, NoTarget, NotFound, RequestRefused, quote_name
from router.kvcache.events import TargetId
from router.prompt.prompt import Prompt
from router.proxy.call import ClientRequest
from router.proxy.relay import RelayDeadline, RelayEnd, RelayFinished, RelayNotStarted, RelayRejected
from router.request.attempt import EarlierAttempts, attempt
from router.request.experiment_unit import derive_unit
from router.request.reading import STORED, check_coding
from router.request.request import Request
from router.request.request_record import close_record, open_record
from router.request.retry_budget import RetryBudget
from router.request.services import Services, Stage
from router.scheduling.policy.record import DEATHS_ALLOWED, PREFILLS_ALLOWED, Record
from router.scheduling.scheduler import Scheduler
from router.tenants.tenant import Tenant, own_name


async def route(call: ClientRequest, services: Services) -> None:
    """Answer a request that has a prompt. Raises `RequestRefused` while nothing has been sent."""
    check_coding(call)
    await run(call, services.path.stages, services)


async def route_stored(call: ClientRequest, response_id: str, services: Services) -> None:
    """Answer a request about a stored response, which only the engine that produced it has. Raises `RequestRefused`
    while nothing has been sent.
    """
    await run(call, services.path.stored, services, response_id)


async def run(call: ClientRequest, stages: Sequence[Stage], services: Services, response_id: str | None = None) -> None:
    """Take a request through its stages, and answer it. Whatever ends it, everything that it holds is released."""
    with services.limiter.open(call.sender) as slot:
        request = Request(call, slot, services.clock.now(), response_id)
        try:
            for stage in stages:
                if (wait := stage(request, services)) is not None:
                    await wait
            await answer(request, services)
        finally:
            request.release()


async def answer(request: Request, services: Services) -> None:
    """Place the request and relay its answer. Its record is open meanwhile and complete at the end."""
    record = open_record(request, services)
    try:
        request.stream = services.data_path.follow(request.prompt)
        assign_policy(request, record, services)
        services.retry_budget.deposit()
        end = await place(request, record, services)
        if not isinstance(end, RelayFinished):
            for recover in services.path.recoveries:
                end = await recover(request, record, end, services)
        if not request.call.started:
            refuse(request.call, end, record)
    finally:
        close_record(record, services)


async def place(request: Request, record: Record, services: Services) -> RelayEnd | None:
    """Choose, book and relay, and retry while this is allowed. Return how the last attempt ended; None if there was
    no target. Raises `NotFound` for an unknown response.
    """
    call, prompt, scheduler = request.call, request.prompt, services.scheduler
    only = request.bound_to = locate_response(prompt, call.tenant, scheduler)
    splits = only is None and bool(scheduler.peers) and can_split(prompt.endpoint, prompt.body)
    earlier = EarlierAttempts(failed=services.data_path.excludes(call))
    scheduled, avoid = request.to_schedule(record), request.avoid
    last: RelayEnd | None = None
    while last is None or may_retry(
        last,
        record,
        services.retry_budget,
        repeats=isinstance(last, RelayNotStarted) and request.repeats and request.may_run_twice,  # may read the body
    ):
        ticket = scheduler.admit(
            scheduled,
            excluding=earlier.failed | avoid if avoid else earlier.failed,
            only=earlier.moved_to or only,
            splits=splits and record.failed_prefills < PREFILLS_ALLOWED,
            prefilled=earlier.prefilled.leg if earlier.prefilled is not None else None,
        )
        if ticket is None and avoid:
            avoid = frozenset()  # no other engine can take the request
            continue
        if ticket is None:
            break
        request.on_placed(ticket)
        last = await attempt(request, ticket, earlier, services)
        if not isinstance(last, RelayNotStarted) or (call.started and earlier.moved_to is None):
            break
    return last


def locate_response(prompt: Prompt, tenant: Tenant | None, scheduler: Scheduler) -> TargetId | None:
    """Return the target that produced the response from which a prompt continues; None if any target will do. This
    includes an unknown response id, since the engine that gets the request gives the best answer. If tenants are
    isolated, however, an unknown id may be another tenant's, which engines cannot detect. Raises `NotFound` then.
    """
    if (response_id := prompt.previous_response_id) is None:
        return None
    target = scheduler.response_target(own_name(tenant, response_id))
    if target is None and tenant is not None and tenant.scope is not None:
        raise NotFound(f"the response `{quote_name(response_id)}` is not known here", code="unknown_response")
    return target


def may_retry(last: RelayEnd, record: Record, retry_budget: RetryBudget, *, repeats: bool = True) -> bool:
    """Return whether another engine may be tried. Retries after a death or a 5xx are limited by the record's count of
    these, after a failed prefill half by no longer splitting, after everything but a death by the router's retry
    budget. `repeats`: whether the request may be repeated after a 5xx.
    """
    if not isinstance(last, RelayNotStarted):
        return False
    if last.moved_to is not None or last.reason == "stuck":
        return True
    if last.reason == "died":
        return record.failures <= DEATHS_ALLOWED
    if last.reason == "failed" and not last.prefill:
        return repeats and record.failures <= DEATHS_ALLOWED and retry_budget.try_withdraw()
    return last.prefill or retry_budget.try_withdraw()


def refuse(call: ClientRequest, last: RelayEnd | None, record: Record) -> None:
    """Answer with the engine's own refusal if there is one. Raises `RequestRefused` otherwise."""
    match last:
        case None:
            refusal: RequestRefused = NoTarget("no engine can serve this model now; try again", retry_after_s=1)
        case RelayDeadline():
            refusal = DeadlineExceeded("the engine did not begin to answer in time")
        case RelayNotStarted("busy" | "failed", refusal=answer) | RelayRejected(answer) if answer is not None:
            record.status = answer.status
            call.answer(answer.status, answer.headers, answer.body)
            return
        case RelayNotStarted("died"):
            record.poison = record.deaths > DEATHS_ALLOWED
            refusal = BadGateway("the engine took the request and died before it answered", code="engine_died")
        case RelayNotStarted("failed", detail=detail, prefill=False):
            refusal = BadGateway(f"{detail}, with an error that cannot be passed on", code="engine_failed")
        case _:
            refusal = NoTarget("no engine could be reached; try again", retry_after_s=1)
    record.status, record.error = refusal.status, refusal.message
    raise refusal


def assign_policy(request: Request, record: Record, services: Services) -> None:
    """Set the policy that decides for all attempts at this request."""
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
