"""Opens and closes the record of a request: what is known when all is ready for a choice, and who learns of its end."""

from __future__ import annotations

from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.prompt import UnknownIds
from router.proxy.call import ClientRequest
from router.request.prepared_request import PreparedRequest, RequestTimes
from router.request.services import Services
from router.scheduling.policy.record import Record, Stages
from router.telemetry.access_log import log_request

LOG_BLOCK_TOKENS = 512  # block size of the decision log, as in the Mooncake traces


def describe_tokens(tokens: TokenizedPrompt | UnknownIds) -> tuple[str, int | None]:
    """Return where token ids came from, or why there are none, and how many the whole prompt has."""
    if isinstance(tokens, UnknownIds):
        return tokens.reason, None
    return tokens.source, len(tokens.ids) if tokens.complete else None


def open_record(
    call: ClientRequest, request: PreparedRequest, stages: Stages, times: RequestTimes, services: Services
) -> Record:
    """Create the record of a request, visible while the request runs."""
    prompt, served, tokens, lease = request.prompt, request.served, request.tokens, request.lease
    number = services.scheduler.selector.next_number()
    tokens_from, counted = describe_tokens(tokens)
    record = Record(
        id=f"{services.run_id}-{number}",
        number=number,
        arrived_s=times.arrived_s,
        at_wall_s=services.clock.wall(),
        endpoint=prompt.path,
        model=prompt.model or "",
        alias=None if (choice := request.choice) is None else choice.alias,
        model_arm=None if choice is None else choice.arm,
        revision=None if choice is None else choice.revision,
        fallback=None if choice is None else choice.fallback,
        stream=prompt.stream,
        several_answers=prompt.several_answers,
        client=call.client,
        sender=call.sender,
        tokens_from=tokens_from,
        prompt_tokens_counted=counted,
        stages=stages,
        body_ms=(times.read_s - times.arrived_s) * 1e3,
        prepared_ms=(services.clock.now() - times.arrived_s) * 1e3,
        trace_id=None if request.trace is None else request.trace.trace_id,
    )
    if lease is not None:
        lease.record, record.admission_rule = record, lease.rule
        stages.admission_ms = None if lease.waited_s is None else lease.waited_s * 1e3
        record.full_targets = sorted(lease.full)
    if isinstance(tokens, TokenizedPrompt):
        stages.tokens_ms, stages.keys_ms = tokens.tokens_ms, tokens.keys_ms
        if services.decision_log is not None:
            record.blocks = tokens.keys_every(LOG_BLOCK_TOKENS)
    call.recorded = True
    services.recent_records.add(record)
    if isinstance(tokens, TokenizedPrompt) and prompt.salt is None and served is not None:
        services.recent_records.prompts.add(tokens, *served)
    services.metrics.on_request_start()
    return record


def close_record(record: Record, request: PreparedRequest, services: Services) -> None:
    trace = request.trace
    record.duration_ms = (services.clock.now() - record.arrived_s) * 1e3
    record.done = True
    services.metrics.on_request_end(record)
    services.scheduler.complete(record)
    if request.choice is not None and services.models is not None:
        services.models.aliases.end(request.choice, record)
    if services.decision_log is not None:
        services.decision_log.add(record)
    if services.tracing is not None and trace is not None and services.tracing.end(trace, record):
        services.metrics.on_trace(record)
    if services.config.log.access:
        log_request(record)
