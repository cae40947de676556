"""Token-id pass-through for one attempt: which of its engines get the prompt's ids, and what came of it.

Connects `backends/token_ids/passthrough.py`, which decides, with `proxy/token_ids.py`, which sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from router.backends.token_ids.passthrough import PassthroughOffer, PassthroughTarget, TokenIdPassthrough
from router.fleet.engine_facts import ModelCard
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.proxy.token_ids import TokenIdUpstreams
from router.proxy.upstreams import Upstream
from router.request.services import PreparedRequest, Services
from router.scheduling.ticket import Ticket


def with_token_ids(request: PreparedRequest, ticket: Ticket, services: Services) -> AbstractContextManager[Upstream]:
    """Return a context that gives the upstreams of this attempt, with the prompt's ids for engines that accept them.
    Leaving it compares the token count of the answer, if it has one, with the router's own.
    """
    served, tokens = request.served, request.tokens
    if served is None or not isinstance(tokens, TokenizedPrompt) or not tokens.json_ids:
        return nullcontext(services.upstreams)
    shares = (ticket,) if ticket.prefill is None else (ticket, ticket.prefill)
    instances = [share.target.instance for share in shares]
    engines = [PassthroughTarget(instance.id, context_tokens(instance.cards, served.base)) for instance in instances]
    offer = services.passthrough.offer(request.prompt, tokens, served.base, served.adapter, engines)
    if offer is None:
        return nullcontext(services.upstreams)
    return AttemptPassthrough(services.passthrough, offer, ticket, services.upstreams, request.prompt.body)


class AttemptPassthrough:
    """The ids of one attempt: marks its record, and reports refusals and token counts. `plain` is the client's request
    without ids.
    """

    __slots__ = ("_offer", "_passthrough", "_plain", "_ticket", "_upstreams")

    def __init__(
        self,
        passthrough: TokenIdPassthrough,
        offer: PassthroughOffer,
        ticket: Ticket,
        upstreams: Upstream,
        plain: bytes,
    ) -> None:
        self._passthrough = passthrough
        self._offer = offer
        self._ticket = ticket
        self._upstreams = upstreams
        self._plain = plain

    def __enter__(self) -> Upstream:
        ticket, offer = self._ticket, self._offer
        if not offer.instances:
            return self._upstreams
        answering = ticket.target.instance.id
        ticket.attempt.token_id_passthrough = answering in offer.instances
        if ticket.prefill is not None:
            ticket.prefill.leg.token_id_passthrough = ticket.prefill.target.instance.id in offer.instances
        ids = offer.known.json_ids
        return TokenIdUpstreams(self._upstreams, self._plain, answering, ids, offer.instances, self._on_refusal)

    def _on_refusal(self, instance: str, answer: bytes | None) -> None:
        if instance == self._ticket.target.instance.id:
            self._ticket.attempt.token_id_passthrough = False
        elif self._ticket.prefill is not None:
            self._ticket.prefill.leg.token_id_passthrough = False
        self._passthrough.on_refused(instance, self._offer, answer)

    def __exit__(self, *_: object) -> None:
        ticket = self._ticket
        had_ids, prompt_tokens = ticket.attempt.token_id_passthrough, ticket.record.prompt_tokens
        self._passthrough.on_answer(self._offer, ticket.target.instance.id, had_ids, prompt_tokens)


def context_tokens(cards: Sequence[ModelCard], model: str) -> int | None:
    """Return the most tokens that a prompt and its answer may have on the base model; `None` if the engine does not
    report it.
    """
    return next((card.max_model_len for card in cards if card.id == model), None)
