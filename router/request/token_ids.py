"""Token ids beside the text, for one attempt: who gets them, what its record says, and who hears what became of it.

Ties the two rooms that know nothing of each other: `backends/token_ids/passthrough.py` chooses, `proxy/token_ids.py`
sends.
"""

from __future__ import annotations

from collections.abc import Sequence

from router.backends.token_ids.passthrough import PassthroughOffer, PassthroughTarget, TokenIdPassthrough
from router.fleet.engine_facts import ModelCard
from router.fleet.instance import ServedModel
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.prompt import Prompt, UnknownIds
from router.proxy.token_ids import TokenIdUpstreams
from router.proxy.upstreams import Upstream
from router.scheduling.ticket import Ticket


def offer_to(
    handing: TokenIdPassthrough,
    ticket: Ticket,
    prompt: Prompt,
    served: ServedModel | None,
    known: TokenizedPrompt | UnknownIds,
) -> PassthroughOffer | None:
    """Which engines of `ticket` get the prompt's ids; written into its attempt. None: there are no ids to hand."""
    if served is None or not isinstance(known, TokenizedPrompt) or not known.spelled:
        return None
    shares = (ticket,) if ticket.prefill is None else (ticket, ticket.prefill)
    instances = [share.target.instance for share in shares]
    engines = [PassthroughTarget(instance.id, context_tokens(instance.cards, served.base)) for instance in instances]
    offer = handing.offer(prompt, known, served.base, served.adapter, engines)
    if offer is not None and offer.takers:
        ticket.attempt.token_id_passthrough = ticket.target.instance.id in offer.takers
        if ticket.prefill is not None:
            ticket.prefill.leg.token_id_passthrough = ticket.prefill.target.instance.id in offer.takers
    return offer


def asking(
    handing: TokenIdPassthrough, offer: PassthroughOffer | None, ticket: Ticket, upstreams: Upstream, plain: bytes
) -> Upstream:
    """Who is asked in this attempt: `upstreams`, with ids where `offer` says so. `plain`: the client's request."""
    if offer is None or not offer.takers:
        return upstreams
    answering = ticket.target.instance.id

    def refused(instance: str, answer: bytes | None) -> None:
        if instance == answering:
            ticket.attempt.token_id_passthrough = False
        elif ticket.prefill is not None:
            ticket.prefill.leg.token_id_passthrough = False
        handing.refused(instance, offer, answer)

    return TokenIdUpstreams(upstreams, plain, answering, offer.known.spelled, offer.takers, refused)


def counted(handing: TokenIdPassthrough, offer: PassthroughOffer | None, ticket: Ticket) -> None:
    """The attempt is over: what its answer counted, if it did, is held against our ids."""
    if offer is not None:
        attempt = ticket.attempt
        handing.observed(offer, ticket.target.instance.id, attempt.token_id_passthrough, ticket.record.prompt_tokens)


def context_tokens(cards: Sequence[ModelCard], model: str) -> int | None:
    """The longest prompt and answer together, as the engine says of its base model; None: it does not say."""
    return next((card.max_model_len for card in cards if card.id == model), None)
