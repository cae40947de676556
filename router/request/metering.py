"""Meters the requests of tenants: a reservation before each begins, and at its end what it used.

    reserve    the estimate is charged, or the request is refused with 429
    correct    the answer begins: what the engine was said to hold of the prompt counts as cached from now on
    settle     the record is complete: what the engine counted takes the place of the estimate, and is added to usage

What is charged where an engine's count is missing:

    the answer is whole         the estimate, with the router's own count of the answer where it has one
    it broke off, or the client left    what was certainly computed: the prompt, once the answer has begun, but for what
                                may have been cached, and the answer's tokens that passed here
    no engine had begun         nothing

A request without a tenant costs one comparison here, one of a tenant without limits no reservation.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from math import ceil
from typing import get_args

from router.clock import Clock
from router.errors import RequestRefused, TooBusy
from router.fleet.answer_lengths import AnswerLengths
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.prompt import Endpoint, Prompt, UnknownIds
from router.proxy.call import ClientRequest
from router.request.prepared_request import PreparedRequest
from router.request.rate_limit_headers import render_rate_limits
from router.scheduling.policy.record import Attempt, Record
from router.scheduling.scheduler import BYTES_PER_TOKEN
from router.telemetry.gpu_time import estimate_gpu_s
from router.telemetry.metrics.label_values import OTHER
from router.telemetry.metrics.prometheus import REASONS
from router.telemetry.metrics.tenant_tables import TenantTables
from router.tenants.ledger import DAY_S, Ledger, LimitName, Refusal, Reservation
from router.tenants.tenant import Tenant
from router.tenants.token_counts import NO_TOKENS, TokenCounts
from router.tenants.usage import UsageKey
from router.tenants.usage_book import UsageBook

UNSEEN_ANSWER_TOKENS = 256  # of a tenant that has had no answer yet
UNCOMPUTED = frozenset({"/v1/messages/count_tokens", "/tokenize", "/detokenize"})  # engines only count for these
FIRST_EVENTS = 4  # of a stream, with no token of the answer: at most, of all APIs
LIMITS = frozenset(get_args(LimitName))
NO_RESERVATION: AbstractContextManager[None] = nullcontext()


class Meter:
    """Charges the tenants of requests in `ledger`, and adds what they used to `usage`. `context_tokens` returns the
    longest context of a model; None: unknown.
    """

    def __init__(
        self,
        ledger: Ledger,
        usage: UsageBook,
        tables: TenantTables,
        context_tokens: Callable[[str], int | None],
        clock: Clock,
    ) -> None:
        self._ledger = ledger
        self._usage = usage
        self._tables = tables
        self._context_tokens = context_tokens
        self._clock = clock
        self._lengths = AnswerLengths()  # by tenant and model

    def reserve(
        self, call: ClientRequest, prompt: Prompt, tokens: TokenizedPrompt | UnknownIds
    ) -> AbstractContextManager[Reservation | None]:
        """Charge the tenant of `call` what its request will probably use, and let its answer say what is left. Raises
        `TooBusy` where that would exceed a limit.
        """
        tenant = call.tenant
        if tenant is None or (limits := tenant.service_class.limits) is None:
            return NO_RESERVATION
        estimate = self._estimate(tenant, prompt, tokens)
        if (allowed := limits.tokens_per_minute) is not None and estimate.computed > allowed:
            estimate = _fit(estimate, allowed, known=isinstance(tokens, TokenizedPrompt))
        reserved = self._ledger.reserve(tenant.name, limits, estimate)
        state = self._ledger.state(tenant.name, limits)
        call.own_lines += render_rate_limits(state, call.path, self._clock.wall())
        if isinstance(reserved, Refusal):
            self._count_refusal(tenant, prompt.model or "", reserved.limit)
            retry_after_s = None if reserved.retry_after_s is None else max(1, ceil(reserved.retry_after_s))
            raise TooBusy(describe_refusal(reserved), code=reserved.limit, retry_after_s=retry_after_s)
        return reserved

    def settle(self, request: PreparedRequest, record: Record) -> None:
        """Charge what a request used that has ended."""
        tenant = request.tenant
        if tenant is None:
            return
        used = self._count(tenant, request, record)
        if request.reservation is not None:
            request.reservation.settle(used)
        if tenant.service_class.limits is not None and record.output_tokens is not None and _is_whole(record):
            self._lengths.observe(_answers_of(tenant, record.model), record.output_tokens)
        gpu_s = estimate_gpu_s(record, used)
        self._usage.add_request(self._key(tenant, record.model), used, gpu_s)
        self._tables.on_end(tenant.name, record.model, used, gpu_s)

    def on_refusal(self, tenant: Tenant | None, refusal: RequestRefused) -> None:
        """Count a request that was refused before it had a record; those that `reserve` refused are counted."""
        if tenant is not None and refusal.code not in LIMITS:
            self._count_refusal(tenant, "", REASONS.get(type(refusal), OTHER))

    def _count_refusal(self, tenant: Tenant, model: str, reason: str) -> None:
        self._usage.add_refusal(self._key(tenant, model), reason)
        self._tables.on_refusal(tenant.name, reason)

    def _key(self, tenant: Tenant, model: str) -> UsageKey:
        return int(self._clock.wall() // DAY_S), tenant.name, model

    def _estimate(self, tenant: Tenant, prompt: Prompt, tokens: TokenizedPrompt | UnknownIds) -> TokenCounts:
        """Return what a request will probably use, as if nothing of its prompt were cached."""
        answer = 0.0
        if prompt.endpoint is not Endpoint.OTHER:
            usual = self._lengths.mean_tokens(_answers_of(tenant, prompt.model or ""))
            answer = UNSEEN_ANSWER_TOKENS if usual is None else usual
            answer = answer if prompt.output_tokens is None else min(answer, prompt.output_tokens)
        if isinstance(tokens, TokenizedPrompt):
            return TokenCounts(len(tokens.ids), 0, ceil(answer))
        if prompt.path in UNCOMPUTED:
            return NO_TOKENS
        size = len(prompt.body) // BYTES_PER_TOKEN
        longest = None if prompt.model is None else self._context_tokens(prompt.model)
        return TokenCounts(size if longest is None else min(size, longest), 0, ceil(answer))

    def _count(self, tenant: Tenant, request: PreparedRequest, record: Record) -> TokenCounts:
        """Return what a request used that has ended."""
        if (prompt := record.prompt_tokens) is not None:
            cached = min(record.cached_tokens or 0, prompt)
            return TokenCounts(prompt - cached, cached, record.output_tokens or 0)
        if not record.attempts or not _has_computed(record):
            return NO_TOKENS
        attempt, stream = record.attempts[-1], request.stream
        passed = max(0, request.events - FIRST_EVENTS) if stream is None else stream.tokens
        if attempt.end == "ok":
            estimate = self._estimate(tenant, request.prompt, request.tokens)
            return TokenCounts(estimate.input_tokens, 0, passed or estimate.output_tokens)
        counted = record.prompt_tokens_counted or 0
        cached = min(counted, held_tokens(attempt))
        return TokenCounts(counted - cached, cached, passed)


def describe_refusal(refusal: Refusal) -> str:
    """Return what a client is told."""
    allowed, used, wanted = (f"{number:,.10g}" for number in (refusal.allowed, refusal.used, refusal.wanted))
    match refusal.limit:
        case "requests_per_minute":
            said = f"{used} of {allowed} requests were made in the last 60 s"
        case "tokens_per_minute":
            said = f"{used} of {allowed} tokens were used in the last 60 s, and this request needs about {wanted}"
        case "concurrent":
            said = f"{used} of {allowed} requests are in progress"
        case "budget_per_day":
            said = (
                f"{used} of the day's budget of {allowed} are spent or reserved, and this request needs about {wanted}"
            )
    again = (
        "it can never fit" if refusal.retry_after_s is None else f"try again in {max(1, ceil(refusal.retry_after_s))} s"
    )
    return f"the limit `{refusal.limit}` is reached: {said}; {again}"


def _fit(estimate: TokenCounts, allowed: int, *, known: bool) -> TokenCounts:
    """Return an estimate whose guessed part is cut to what a limit allows, so that a guess alone refuses nobody for
    ever. `known`: the prompt is not guessed.
    """
    prompt = estimate.input_tokens if known else min(estimate.input_tokens, allowed)
    return TokenCounts(prompt, 0, max(0, min(estimate.output_tokens, allowed - prompt)))


def _answers_of(tenant: Tenant, model: str) -> str:
    return f"{tenant.name}\n{model}"


def _is_whole(record: Record) -> bool:
    """Return whether the answer passed to its end."""
    return record.attempts[-1].end == "ok"


def _has_computed(record: Record) -> bool:
    """Return whether an engine has computed the prompt: it began an answer that is no refusal, or the prefill half of a
    pair did.
    """
    if record.ttft_ms is not None and record.status is not None and record.status < 400:
        return True
    half = record.attempts[-1].prefill
    return half is not None and half.end == "ok"


def held_tokens(attempt: Attempt) -> int:
    """Return how much of the prompt may have been cached where it was computed."""
    half = attempt.prefill
    if half is not None:
        return half.cached_tokens if half.cached_tokens is not None else half.expected_tokens or 0
    return (attempt.expected_tokens or 0) + (attempt.pool_tokens or 0)
