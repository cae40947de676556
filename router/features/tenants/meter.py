"""Meter of tenants' requests: it makes a reservation before each request begins, and charges the use at the end.

    open       before the body is read: the request is counted, or refused with 429 if a limit is used up
    reserve    the estimate is charged, or the request is refused with 429
    follow     while a stream is longer than estimated: the excess is charged as it runs
    correct    when the answer begins: the part of the prompt that the engine was expected to hold counts as cached
    settle     when the record is complete: the engine's counts replace the estimate, and are added to usage

If the engine's counts are missing, the charge is:

    the answer is whole         the estimate, with the router's own count of the answer if it has one
    it broke off, or the client left    what the engine received and made: the prompt without the part that may have
                                been cached, and the answer's tokens that passed here; without a stream, as many as
                                the engine makes in that time
    no engine took the request, or the engine died of it or refused it    nothing
    its tokens did not fit, or the client left while they were counted    a sixteenth of the prompt

A request of a tenant without limits has no reservation.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import get_args

from router.clock import Clock
from router.errors import RequestRefused, TenantOverLimit
from router.features.tenants.answer_quantiles import AnswerQuantiles
from router.features.tenants.gpu_time import estimate_answer_tokens, estimate_gpu_s
from router.features.tenants.ledger import DAY_S, LEAST, Ledger, LimitName, LimitState, Refusal, Reservation
from router.features.tenants.rate_limit_headers import render_rate_limits
from router.features.tenants.tenant_tables import TenantTables
from router.features.tenants.token_counts import NO_TOKENS, TokenCounts
from router.features.tenants.usage import UsageKey
from router.features.tenants.usage_book import UsageBook
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.prompt import Endpoint, Prompt, UnknownIds
from router.proxy.call import ClientRequest
from router.request.request import Request
from router.scheduling.policy.record import Attempt, Record
from router.scheduling.scheduler import BYTES_PER_TOKEN
from router.telemetry.metrics.label_values import OTHER
from router.telemetry.metrics.prometheus import REASONS
from router.tenants.tenant import Tenant

LEAST_ANSWER_TOKENS = 256  # reserved at least, however short earlier answers were, unless the client's is lower
COUNTED_TOKENS = 16  # tokens of a prompt that did not fit cost one: counting prompts without end is not free
TAKEN = frozenset(("client_gone", "cut", "deadline"))  # ends of attempts that left an engine which had the request
UNCOMPUTED = frozenset({"/v1/messages/count_tokens", "/tokenize", "/detokenize"})  # engines only count for these
LIMITS = frozenset(get_args(LimitName))


class Meter:
    """Charges the tenants of requests in `ledger`, and adds their use to `usage`. `context_tokens` returns the
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
        self._lengths = AnswerQuantiles()  # by tenant and model

    def open(self, call: ClientRequest, *, least: TokenCounts = LEAST) -> Reservation | None:
        """Count a request of the tenant of `call`, which needs at least `least`, before anything is done for it;
        None if the tenant has no limits. Raises `TenantOverLimit` if a limit is used up.
        """
        tenant = call.tenant
        if tenant is None or (limits := tenant.service_class.limits) is None:
            return None
        opened = self._ledger.open(tenant.name, limits, least=least)
        if isinstance(opened, Refusal):
            self._report_limits(call, self._ledger.state(tenant.name, limits))
            raise self._refuse(tenant, "", opened)
        return opened

    def begin_counting(self, reservation: Reservation, prompt: Prompt) -> None:
        """Record that a prompt is being tokenized: a client that leaves meanwhile is charged as for a prompt that
        did not fit.
        """
        reservation.if_left = TokenCounts(len(prompt.body) // (BYTES_PER_TOKEN * COUNTED_TOKENS))

    def reserve(
        self,
        call: ClientRequest,
        reservation: Reservation,
        prompt: Prompt,
        tokens: TokenizedPrompt | UnknownIds,
    ) -> None:
        """Charge the tenant of `call` what its request will probably use, and report in the answer's headers what
        is left. Raises `TenantOverLimit` if the charge would exceed a limit.
        """
        tenant = call.tenant
        assert tenant is not None, "it has a reservation"
        estimate = self._estimate(tenant, prompt, tokens)
        if (allowed := tenant.service_class.most_tokens) is not None and estimate.computed > allowed:
            guessed = isinstance(tokens, UnknownIds) and tokens.reason != "too_long"
            estimate = _fit(estimate, allowed, known=not guessed)
        refusal = reservation.reserve(estimate)
        self._report_limits(call, reservation.state())
        if refusal is not None:
            counted = len(tokens.ids) if isinstance(tokens, TokenizedPrompt) else 0
            reservation.settle(TokenCounts(ceil(counted / COUNTED_TOKENS)))
            raise self._refuse(tenant, prompt.model or "", refusal)

    def _refuse(self, tenant: Tenant, model: str, refusal: Refusal) -> TenantOverLimit:
        """Count a refusal, and return the answer to it."""
        self._count_refusal(tenant, model, refusal.limit)
        retry_after_s = None if refusal.retry_after_s is None else max(1, ceil(refusal.retry_after_s))
        return TenantOverLimit(describe_refusal(refusal), code=refusal.limit, retry_after_s=retry_after_s)

    def _report_limits(self, call: ClientRequest, state: LimitState) -> None:
        """Report what is left of the tenant's limits per minute in the headers of the answer to `call`."""
        call.own_lines += render_rate_limits(state, call.path, self._clock.wall())

    def settle(self, request: Request, record: Record, reservation: Reservation | None) -> None:
        """Charge the use of a request that has ended."""
        tenant = request.call.tenant
        if tenant is None:
            return
        used = self._count(tenant, request, record)
        if reservation is not None:
            reservation.settle(used)
        if tenant.service_class.limits is not None and used.output_tokens:
            length = ceil(used.output_tokens / request.prompt.answers)
            self._lengths.observe(_answers_of(tenant, record.model), length)
        gpu_s = estimate_gpu_s(record, used)
        self._usage.add_request(self._key(tenant, record.model), used, gpu_s)
        self._tables.on_end(tenant.name, record.model, used, gpu_s)

    def on_refusal(self, tenant: Tenant | None, refusal: RequestRefused) -> None:
        """Count a request that was refused before it had a record, unless a limit refused it: that is counted
        already.
        """
        if tenant is not None and refusal.code not in LIMITS:
            self._count_refusal(tenant, "", REASONS.get(type(refusal), OTHER))

    def _count_refusal(self, tenant: Tenant, model: str, reason: str) -> None:
        self._usage.add_refusal(self._key(tenant, model), reason)
        self._tables.on_refusal(tenant.name, reason)

    def _key(self, tenant: Tenant, model: str) -> UsageKey:
        return int(self._clock.wall() // DAY_S), tenant.name, model

    def _estimate(self, tenant: Tenant, prompt: Prompt, tokens: TokenizedPrompt | UnknownIds) -> TokenCounts:
        """Return the probable use of a request, as if nothing of its prompt were cached."""
        answer = 0
        if prompt.endpoint is not Endpoint.OTHER:
            seen = self._lengths.read(_answers_of(tenant, prompt.model or "")) or 0
            answer = max(seen, LEAST_ANSWER_TOKENS)
            answer = answer if prompt.output_tokens is None else min(answer, prompt.output_tokens)
            answer *= prompt.answers
        if isinstance(tokens, TokenizedPrompt):
            return TokenCounts(len(tokens.ids), 0, answer)
        if prompt.path in UNCOMPUTED:
            return NO_TOKENS
        size = len(prompt.body) // BYTES_PER_TOKEN
        longest = None if prompt.model is None else self._context_tokens(prompt.model)
        return TokenCounts(size if longest is None else min(size, longest), 0, answer)

    def _count(self, tenant: Tenant, request: Request, record: Record) -> TokenCounts:
        """Return the use of a request that has ended."""
        if (prompt := record.prompt_tokens) is not None:
            cached = min(record.cached_tokens or 0, prompt)
            return TokenCounts(prompt - cached, cached, record.output_tokens or 0)
        if not record.attempts or not _was_given(record):
            return NO_TOKENS
        attempt, passed = record.attempts[-1], request.passed_tokens
        estimate = self._estimate(tenant, request.prompt, request.tokens)
        if attempt.end == "ok":
            return TokenCounts(estimate.input_tokens, 0, passed or estimate.output_tokens)
        counted = estimate.input_tokens if record.prompt_tokens_counted is None else record.prompt_tokens_counted
        cached = min(counted, held_tokens(attempt))
        made = _count_made(request, attempt, TokenCounts(counted - cached, cached), estimate.output_tokens)
        return TokenCounts(counted - cached, cached, made)


def _count_made(request: Request, attempt: Attempt, given: TokenCounts, usual: int) -> int:
    """Return how many tokens were made of an answer whose end did not pass here; `usual` if that is unknown."""
    prompt = request.prompt
    if prompt.stream or prompt.endpoint is Endpoint.OTHER:
        return request.passed_tokens
    steps = estimate_answer_tokens(attempt, given)
    if steps is None:
        return usual
    return prompt.answers * (steps if prompt.output_tokens is None else min(steps, prompt.output_tokens))


def describe_refusal(refusal: Refusal) -> str:
    """Return the refusal's message for a client."""
    allowed, used, wanted = (f"{number:,.10g}" for number in (refusal.allowed, refusal.used, refusal.wanted))
    needs = "" if refusal.used >= refusal.allowed else f", and this request needs about {wanted}"
    match refusal.limit:
        case "requests_per_minute":
            usage = f"{used} of {allowed} requests were made in the last 60 s"
        case "tokens_per_minute":
            usage = f"{used} of {allowed} tokens were used in the last 60 s{needs}"
        case "concurrent":
            usage = f"{used} of {allowed} requests are in progress"
        case "budget_per_day":
            usage = f"{used} of the day's budget of {allowed} are spent or reserved{needs}"
    again = (
        "it can never fit" if refusal.retry_after_s is None else f"try again in {max(1, ceil(refusal.retry_after_s))} s"
    )
    return f"the limit `{refusal.limit}` is reached: {usage}; {again}"


def _fit(estimate: TokenCounts, allowed: int, *, known: bool) -> TokenCounts:
    """Return `estimate` with its guessed part cut to what a limit allows, so that a guess alone never refuses a
    request for ever. `known`: the prompt's length is not a guess.
    """
    prompt = estimate.input_tokens if known else min(estimate.input_tokens, allowed)
    return TokenCounts(prompt, 0, max(0, min(estimate.output_tokens, allowed - prompt)))


def _answers_of(tenant: Tenant, model: str) -> str:
    return f"{tenant.name}\n{model}"


def _was_given(record: Record) -> bool:
    """Return whether an engine took the request, without being at fault if the answer is not whole: the engine
    began an answer that is no error, the router or client left it while it worked, or the prefill half of a pair
    has ended.
    """
    attempt = record.attempts[-1]
    if record.status is not None and record.status >= 400 and attempt.end not in TAKEN:
        return False
    half = attempt.prefill
    return record.ttft_ms is not None or attempt.end in TAKEN or (half is not None and half.end == "ok")


def held_tokens(attempt: Attempt) -> int:
    """Return how many tokens of the prompt may have been cached at the engine that computed it."""
    half = attempt.prefill
    if half is not None:
        return half.cached_tokens if half.cached_tokens is not None else half.expected_tokens or 0
    return (attempt.expected_tokens or 0) + (attempt.pool_tokens or 0)
