"""Opens and closes the record of a request: a record opens when everything is ready for a choice, and closes when
the request ends.
"""

from __future__ import annotations

from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.prompt import UnknownIds
from router.request.request import Request
from router.request.services import Services
from router.scheduling.policy.record import Record
from router.telemetry.access_log import log_request


def describe_tokens(tokens: TokenizedPrompt | UnknownIds) -> tuple[str, int | None]:
    """Return the source of the token ids, or why there are none, and the token count of the whole prompt (None:
    unknown).
    """
    if isinstance(tokens, UnknownIds):
        return tokens.reason, None
    return tokens.source, len(tokens.ids) if tokens.complete else None


def open_record(request: Request, services: Services) -> Record:
    """Create the record of a request, and make it visible while the request runs."""
    call, prompt, tokens, durations = request.call, request.prompt, request.tokens, request.durations
    number = services.scheduler.selector.next_number()
    tokens_from, counted = describe_tokens(tokens)
    record = request.record = Record(
        id=f"{services.run_id}-{number}",
        number=number,
        arrived_s=request.arrived_s,
        at_wall_s=services.clock.wall(),
        endpoint=prompt.path,
        model=prompt.model or "",
        stream=prompt.stream,
        several_answers=prompt.several_answers,
        client=call.client,
        sender=call.sender,
        tokens_from=tokens_from,
        prompt_tokens_counted=counted,
        stages=durations,
        body_ms=(request.read_s - request.arrived_s) * 1e3,
        prepared_ms=(services.clock.now() - request.arrived_s) * 1e3,
    )
    if isinstance(tokens, TokenizedPrompt):
        durations.tokens_ms, durations.keys_ms = tokens.tokens_ms, tokens.keys_ms
        record.prefix_end = tokens.prefix_end
    for part in request.held:
        part.on_record(record)
    call.recorded = True
    services.show(record)
    services.metrics.on_request_start()
    return record


def close_record(record: Record, services: Services) -> None:
    """Complete the record of a request that has ended."""
    record.duration_ms = (services.clock.now() - record.arrived_s) * 1e3
    record.done = True
    services.metrics.on_request_end(record)
    services.scheduler.complete(record)
    if len(record.attempts) > 1 or record.error is not None:
        services.failed_attempts.add(record)
    if services.config.log.access:
        log_request(record)
