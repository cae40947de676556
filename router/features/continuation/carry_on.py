"""Continues a stream at another engine when its own has failed after the first byte.

The next engine is chosen as for any request, without those that failed. It gets the token ids of the prompt and of
the answer so far, or their text if ids are unknown or not used (`backends/vllm/continuation.py`), and the client
gets the engine's tokens in the same stream (`prompt/continuable_stream.py`). If no engine can continue the answer,
the stream ends with an error event, and the record has the reason (`uncontinued`). Attempts are limited per answer,
because an answer on which engine after engine fails may be the cause.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec

from router.backends.vllm.continuation import ContinuationRefusal, continuation_body, text_continuation_body
from router.kvcache.events import TargetId
from router.prompt.answer_tail import BROKEN_CHARACTER
from router.prompt.answer_text import encode_text
from router.prompt.api.continuable import has_media
from router.prompt.body_rewrite import requests_usage
from router.prompt.broken_stream import BrokenReason, end_broken_stream
from router.prompt.continuable_stream import ContinuableStream
from router.prompt.event_bytes import DONE
from router.proxy.engine_connection import ExchangeFailure
from router.proxy.relay import RelayBroken, RelayDeadline, RelayEnd, RelayFinished
from router.request.attempt import EarlierAttempts, attempt
from router.request.request import Request
from router.request.services import Services
from router.scheduling.policy.record import Attempt, Record
from router.scheduling.ticket import Ticket

log = logging.getLogger("warmroute.web")

BREAKS_ALLOWED = 2  # per answer: a rolling restart may break a long one twice; one more break ends it
ENGINES_TRIED = 3  # in a row that do not begin to continue the answer

NotCarriedOn = (
    BrokenReason
    | ContinuationRefusal
    | Literal["multimodal", "stop_strings", "breaks", "no_target", "refused", "deadline"]
)
"""Why a continuable answer was not continued, in addition to the stream's own reasons.

    stop_strings  too many tokens without text before the end
    multimodal    the prompt has media, for which its token ids are only placeholders
    breaks        more engines failed on the answer than `BREAKS_ALLOWED`
    no_target     no other engine can serve the request now
    refused       no engine began to continue: not reached, full, or its prompt was not the ids that it was sent
    deadline      the next engine did not begin in time
    length        no token is left of `max_tokens`
"""


@dataclass(slots=True)
class _Break:
    """The last break of the answer."""

    attempt: Attempt
    failure: ExchangeFailure
    number: int = 1  # of this answer
    refusal: NotCarriedOn | None = None  # why the answer cannot be continued from this break
    tried: int = 0  # engines since the break, none of which began to continue the answer


class _Rest(NamedTuple):
    """The request for the rest of the answer, and its booking."""

    request: Request
    ticket: Ticket


async def continue_stream(
    request: Request, record: Record, end: RelayEnd | None, services: Services
) -> RelayEnd | None:
    """Complete an answer that broke off and was left open, by other engines, or end it with an error event."""
    if isinstance(end, RelayBroken) and end.open:
        broke = len(record.attempts)
        await carry_on(request, record, end, services)
        _log_end(record, record.attempts[broke - 1].decision.target, end.failure.value)
    return end


def _log_end(record: Record, failed: str, failure: str) -> None:
    """Log that an answer of the target `failed` was continued, or why it was not."""
    by = f"continued by {record.attempts[-1].decision.target}"
    outcome = by if record.uncontinued is None else f"not continued ({record.uncontinued})"
    log.info("record %s: the answer of %s broke off, %s: %s", record.id, failed, outcome, failure)


async def carry_on(request: Request, record: Record, broken: RelayBroken, services: Services) -> None:
    stream = request.stream
    assert stream is not None, "only such streams are left open"
    earlier = EarlierAttempts(failed=set())
    at = _Break(record.attempts[-1], broken.failure)
    end: RelayEnd = broken
    reported = b""  # the error from the last engine that began, or from one tried after it
    while not isinstance(end, RelayFinished):
        reported = stream.reported if isinstance(end, RelayBroken) else stream.reported or reported
        if not await _turn_to_text(request, stream, earlier, services):
            _exclude(record.attempts[-1].decision.target, earlier, services)
        if stream.finished:
            at.attempt.end = "continued"
            _close(request, stream, record)
            return
        if isinstance(end, RelayBroken):
            at.refusal = await _find_resume_point(request, stream, earlier, services)
        rest = _prepare(request, record, at, end, earlier, services)
        if not isinstance(rest, _Rest):
            record.uncontinued = rest
            broken_end = end_broken_stream(request.prompt.endpoint, "engine_failed", at.failure.value)
            _finish(request, reported + DONE if reported else broken_end)
            return
        end = await attempt(rest.request, rest.ticket, earlier, services)
        at.tried += 1
        if isinstance(end, RelayFinished | RelayBroken):
            at.attempt.end = "continued"
        if isinstance(end, RelayBroken):
            at = _Break(record.attempts[-1], end.failure, at.number + 1)
    record.error = None


def _prepare(
    request: Request,
    record: Record,
    at: _Break,
    end: RelayEnd,
    earlier: EarlierAttempts,
    services: Services,
) -> _Rest | NotCarriedOn:
    """Return the request for the rest of the answer, with the next engine booked; or why there is none. `end` is
    the end of the previous attempt.
    """
    stream = request.stream
    assert stream is not None
    if at.number > BREAKS_ALLOWED:
        return "breaks"
    if isinstance(end, RelayDeadline):
        return "deadline"
    if at.tried >= ENGINES_TRIED:
        return "refused"
    if (refusal := at.refusal or stream.find_refusal()) is not None:
        return refusal
    if has_media(request.prompt.body):
        return "multimodal"
    if not isinstance(rest := _build_rest(request, stream), Request):
        return rest
    if (ticket := _place(request, record, earlier, services)) is None:
        return "no_target"
    ticket.attempt.continued_tokens = stream.tokens
    ticket.attempt.continued_by = stream.by if stream.begun else None
    return _Rest(rest, ticket)


async def _find_resume_point(
    request: Request, stream: ContinuableStream, earlier: EarlierAttempts, services: Services
) -> NotCarriedOn | None:
    """Go back in the answer to where the next engine can begin. Return why there is no such place; None if there
    is.
    """
    if (refusal := stream.find_refusal()) is not None:
        return refusal
    while (ids := stream.resume_ids()) is not None:
        text = await _detokenize(ids, request, earlier, services) if ids else None
        if text is None:
            return "parser"
        if stream.is_all_sent(text):
            break
        if not stream.drop_unsent():
            return "parser"
    return None if stream.rewind() else "stop_strings"


async def _turn_to_text(
    request: Request, stream: ContinuableStream, earlier: EarlierAttempts, services: Services
) -> bool:
    """Switch from ids to text if an engine did not use the ids. Return whether the switch was made: then the same
    engine may be tried again.
    """
    ids = stream.ids_for_text() if stream.ids_ignored else None
    text = await _detokenize(ids, request, earlier, services) if ids else None
    if text is None:
        return False
    text, prompt = text.rstrip(BROKEN_CHARACTER), request.prompt
    if isinstance(text_continuation_body(prompt.endpoint, prompt.body, encode_text(text), stream.tokens), str):
        return False
    stream.use_text(text)
    return True


async def _detokenize(ids: list[int], request: Request, earlier: EarlierAttempts, services: Services) -> str | None:
    """Return the text of `ids`; None if no instance can detokenize them."""
    served = request.served
    if served is None:
        return None
    candidates = services.scheduler.fleet.candidates(served.base, (), services.clock.now())
    instances = [target.instance.id for target in candidates if target.id not in earlier.failed]
    return await services.tokenization.detokenize(ids, served.base, list(dict.fromkeys(instances)))


def _exclude(failed: str, earlier: EarlierAttempts, services: Services) -> None:
    """Exclude all ranks of an instance that failed, and have the instance probed."""
    earlier.failed.add(failed)
    if (target := services.scheduler.fleet.target(TargetId(failed))) is not None:
        earlier.failed.update(target.id for target in target.instance.targets.values())
        services.suspect(target.instance.id)


def _place(request: Request, record: Record, earlier: EarlierAttempts, services: Services) -> Ticket | None:
    """Choose and book the next engine; None if there is none."""
    ticket = services.scheduler.admit(request.to_schedule(record), excluding=earlier.failed)
    if ticket is not None:
        request.on_placed(ticket)
    return ticket


def _build_rest(request: Request, stream: ContinuableStream) -> Request | ContinuationRefusal:
    """Return the request for the rest of the answer, or why there is none."""
    known = request.known
    counted = len(known.ids) if known is not None and known.complete else None
    prompt, so_far = request.prompt, stream.begin_rest(counted)
    if so_far is None:
        return request.for_rest(request.prompt)
    build = continuation_body if stream.by == "ids" else text_continuation_body
    body = build(prompt.endpoint, prompt.body, so_far, stream.tokens)
    if not isinstance(body, bytes):
        return body
    return request.for_rest(msgspec.structs.replace(prompt, body=body))


def _close(request: Request, stream: ContinuableStream, record: Record) -> None:
    """Complete an answer that lacks only its end."""
    usage, record.error = stream.count(), None
    record.prompt_tokens, record.output_tokens = usage.prompt_tokens, usage.output_tokens
    prompt = request.prompt
    last = stream.closing(with_usage=not prompt.hide_usage and requests_usage(prompt.body))
    _finish(request, last)


def _finish(request: Request, last: bytes) -> None:
    request.call.finish(last if request.rename is None else request.rename.feed(last) + request.rename.flush())
