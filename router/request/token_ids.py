"""Token-id pass-through for one attempt: which of its engines get the prompt's ids, and with which result.

This module connects `backends/token_ids/passthrough.py`, which decides, with the data path, which sends.
"""

from __future__ import annotations

from collections.abc import Sequence

from router.backends.token_ids.passthrough import PassthroughOffer, PassthroughTarget, TokenIdPassthrough
from router.backends.vllm.token_ids import JsonIds
from router.fleet.engine_facts import ModelCard
from router.request.request import Request
from router.scheduling.ticket import Ticket


def offer_token_ids(request: Request, ticket: Ticket, passthrough: TokenIdPassthrough) -> AttemptPassthrough | None:
    """Return the ids for this attempt, with the engines that accept them; None for a prompt that is never sent as
    ids.
    """
    served, known = request.served, request.known
    if served is None or known is None or not known.json_ids:
        return None
    shares = (ticket,) if ticket.prefill is None else (ticket, ticket.prefill)
    instances = [share.target.instance for share in shares]
    engines = [PassthroughTarget(instance.id, context_tokens(instance.cards, served.base)) for instance in instances]
    offer = passthrough.offer(request.prompt, known, served.base, served.adapter, engines)
    return None if offer is None else AttemptPassthrough(passthrough, offer, ticket)


class AttemptPassthrough:
    """The ids of one attempt. As a context manager, it marks the attempt's record on entry, and on exit it compares
    the answer's token count, if there is one, with the router's own. It also reports refusals.
    """

    __slots__ = ("_offer", "_passthrough", "_ticket")

    def __init__(self, passthrough: TokenIdPassthrough, offer: PassthroughOffer, ticket: Ticket) -> None:
        self._passthrough = passthrough
        self._offer = offer
        self._ticket = ticket

    @property
    def instances(self) -> frozenset[str]:
        """The engines that get the ids."""
        return self._offer.instances

    @property
    def ids(self) -> JsonIds:
        return self._offer.known.json_ids

    def __enter__(self) -> AttemptPassthrough:
        ticket, instances = self._ticket, self._offer.instances
        if instances:
            ticket.attempt.token_id_passthrough = ticket.target.instance.id in instances
            if ticket.prefill is not None:
                ticket.prefill.leg.token_id_passthrough = ticket.prefill.target.instance.id in instances
        return self

    def on_refusal(self, instance: str, answer: bytes | None) -> None:
        """Handle a 400 of `instance` to a request with ids; `answer` is the answer's body, None if unreadable."""
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
    """Return the maximum number of tokens of a prompt and its answer on the base model; None if the engine does not
    report it.
    """
    return next((card.max_model_len for card in cards if card.id == model), None)
