"""A request as prepared for the choice of an engine."""

from __future__ import annotations

from router.fleet.instance import ServedModel
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.answer_model import AnswerModel
from router.prompt.continuable_stream import ContinuableStream
from router.prompt.prompt import Prompt, UnknownIds
from router.request.admin_tokens import PolicyOverride
from router.request.admission.lease import AdmissionLease
from router.scheduling.model_aliases import ModelChoice
from router.telemetry.tracing.context import TraceContext
from router.tenants.ledger import Reservation
from router.tenants.tenant import Tenant
from scorers.contract import PoolHit

FIRST_EVENTS = 4  # of a stream, with no token of the answer: at most, of all APIs


class RequestTimes:
    """Monotonic times of a request: `read_s` is when its body was complete."""

    def __init__(self, arrived_s: float, read_s: float) -> None:
        self.arrived_s = arrived_s
        self.read_s = read_s


class PreparedRequest:
    """A request as far as it is known before an engine is chosen.

    None stands for: the request names no model (`served`), sessions are not counted (`lease`), no tracing (`trace`),
    another engine cannot carry the answer on (`stream`, which is set when the record is open), clients need not say who
    they are (`tenant`), the tenant has no limits (`reservation`), the client's name for the model is the engines' own
    (`choice`). `events` counts those of the answer that passed, for a tenant whose stream is not kept in `stream`.
    """

    def __init__(
        self,
        prompt: Prompt,
        served: ServedModel | None,
        tokens: TokenizedPrompt | UnknownIds,
        pool_hit: PoolHit | None = None,
        override: PolicyOverride | None = None,
        lease: AdmissionLease | None = None,
        trace: TraceContext | None = None,
        stream: ContinuableStream | None = None,
        tenant: Tenant | None = None,
        reservation: Reservation | None = None,
        choice: ModelChoice | None = None,
    ) -> None:
        self.prompt = prompt
        self.served = served
        self.tokens = tokens
        self.pool_hit = pool_hit
        self.override = override
        self.lease = lease
        self.trace = trace
        self.stream = stream
        self.tenant = tenant
        self.reservation = reservation
        self.choice = choice
        self.rename = None if choice is None else build_rename(choice)
        self.events = 0

    @property
    def passed_tokens(self) -> int:
        """Tokens of a streamed answer that passed so far, as far as they can be counted before its end."""
        return max(0, self.events - FIRST_EVENTS) if self.stream is None else self.stream.tokens

    def carried_on(self, prompt: Prompt) -> PreparedRequest:
        """Return the request for the engine that carries the answer on: with `prompt`, whose ids the router has not
        counted.
        """
        rest = self.for_model(prompt, self.served, UnknownIds("continued"), self.pool_hit, self.choice)
        rest.rename = self.rename
        return rest

    def for_model(
        self,
        prompt: Prompt,
        served: ServedModel | None,
        tokens: TokenizedPrompt | UnknownIds,
        pool_hit: PoolHit | None,
        choice: ModelChoice | None,
    ) -> PreparedRequest:
        """Return the request as it was prepared anew, for another model of its alias."""
        kept = self.override, self.lease, self.trace, self.stream, self.tenant, self.reservation
        return PreparedRequest(prompt, served, tokens, pool_hit, *kept, choice)


def build_rename(choice: ModelChoice) -> AnswerModel | None:
    """Return what names the model in an answer as the client does; None where the engine does so itself."""
    return None if choice.alias == choice.model else AnswerModel(choice.model, choice.alias)
