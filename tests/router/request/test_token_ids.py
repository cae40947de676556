"""Token-id pass-through of one attempt: who gets ids, what its record says, and what its end reports."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import pytest

from router.backends.token_ids.passthrough import PassthroughOffer, PassthroughTarget
from router.fleet.engine_facts import ModelCard
from router.fleet.instance import ServedModel
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.prompt import Endpoint, Prompt, UnknownIds
from router.request.token_ids import context_tokens, offer_token_ids
from tests.router.request.requests import a_request

KNOWN = TokenizedPrompt(array("I", [1, 2]), True, "local", {}, 0.0, 0.0, (b"1,2",))
PROMPT = Prompt(Endpoint.CHAT, Endpoint.CHAT.value, "alias", b"{}", UnknownIds("not_needed"))
SERVED = ServedModel("m", "lora")


class FakePassthrough:
    """Offers the ids to `takers`, and records its calls."""

    def __init__(self, *takers: str) -> None:
        self.takers = frozenset(takers)
        self.calls: list[Any] = []

    def offer(
        self, prompt: Prompt, known: TokenizedPrompt, model: str, adapter: str | None, engines: Any
    ) -> PassthroughOffer | None:
        self.calls.append((model, adapter, list(engines)))
        return PassthroughOffer(model, (), known, self.takers)

    def on_answer(self, offer: PassthroughOffer, *observation: Any) -> None:
        self.calls.append(observation)

    def on_refused(self, instance: str, offer: PassthroughOffer, answer: bytes | None) -> None:
        self.calls.append((instance, answer))


def attempt(passthrough: FakePassthrough, ticket: Any, served: Any = SERVED, tokens: Any = KNOWN) -> Any:
    source: Any = passthrough
    return offer_token_ids(a_request(PROMPT, tokens, served=served), ticket, source)


def share(instance: str, longest: int | None) -> Any:
    cards = (ModelCard("m", "/m", None, longest), ModelCard("lora", "/l", "m", None))
    return SimpleNamespace(target=SimpleNamespace(instance=SimpleNamespace(id=instance, cards=cards)))


def a_ticket(*, pair: bool = False) -> Any:
    ticket = share("d", 100)
    ticket.attempt, ticket.record = SimpleNamespace(token_id_passthrough=False), SimpleNamespace(prompt_tokens=7)
    ticket.prefill = share("p", None) if pair else None
    if pair:
        ticket.prefill.leg = SimpleNamespace(token_id_passthrough=False)
    return ticket


def flags(ticket: Any) -> list[bool]:
    own = [ticket.attempt.token_id_passthrough]
    return own + ([ticket.prefill.leg.token_id_passthrough] if ticket.prefill is not None else [])


@pytest.mark.parametrize(
    ("pair", "takers", "expected"),
    [
        (False, "d", [True]),
        (False, "", [False]),
        (True, "dp", [True, True]),
        (True, "p", [False, True]),
        (True, "d", [True, False]),
    ],
)
def test_the_record_says_which_engines_got_ids(pair: bool, takers: str, expected: list[bool]) -> None:
    passthrough, ticket = FakePassthrough(*takers), a_ticket(pair=pair)
    with attempt(passthrough, ticket):
        assert flags(ticket) == expected
    engines = [PassthroughTarget("d", 100)] + [PassthroughTarget("p", None)] * pair
    assert passthrough.calls[0] == ("m", "lora", engines), "each with the context length of its base model"


@pytest.mark.parametrize(
    ("served", "tokens"), [(None, KNOWN), (SERVED, UnknownIds("media")), (SERVED, KNOWN._replace(json_ids=()))]
)
def test_without_ids_nothing_is_offered(served: Any, tokens: Any) -> None:
    passthrough, ticket = FakePassthrough("d"), a_ticket()
    assert attempt(passthrough, ticket, served, tokens) is None
    assert (passthrough.calls, flags(ticket)) == ([], [False])


def test_an_offer_that_no_engine_takes_has_no_instances() -> None:
    with attempt(FakePassthrough(), a_ticket()) as offered:
        assert offered.instances == frozenset()


def test_a_refusal_is_recorded_and_reported() -> None:
    passthrough, ticket = FakePassthrough("d", "p"), a_ticket(pair=True)
    with attempt(passthrough, ticket) as offered:
        assert (offered.instances, offered.ids) == ({"d", "p"}, KNOWN.json_ids)
        offered.on_refusal("p", b"why")
        assert flags(ticket) == [True, False]
        offered.on_refusal("d", None)
        assert flags(ticket) == [False, False]
    assert passthrough.calls[1:] == [("p", b"why"), ("d", None), ("d", False, 7)]


def test_the_token_count_of_the_answer_is_compared_at_the_end() -> None:
    passthrough = FakePassthrough("d")
    with attempt(passthrough, a_ticket()):
        assert len(passthrough.calls) == 1
    assert passthrough.calls[1:] == [("d", True, 7)]


def test_the_context_length_is_that_of_the_base_model() -> None:
    cards = [ModelCard("other", "/o", None, 5), ModelCard("m", "/m", None, 9)]
    assert [context_tokens(cards, name) for name in ("m", "other", "lora")] == [9, 5, None]
