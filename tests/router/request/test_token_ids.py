"""What one attempt hands to whom, as its record tells, and what its end teaches."""

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
from router.proxy.token_ids import TokenIdUpstreams
from router.request.token_ids import asking, context_tokens, counted, offer_to

KNOWN = TokenizedPrompt(array("I", [1, 2]), True, "local", {}, 0.0, 0.0, (b"1,2",))
PROMPT = Prompt(Endpoint.CHAT, Endpoint.CHAT.value, "alias", b"{}", UnknownIds("not_needed"))
SERVED = ServedModel("m", "lora")
UPSTREAMS: Any = object()


class Handing:
    """A room that hands to `takers`, and remembers what it was told."""

    def __init__(self, *takers: str) -> None:
        self.takers = frozenset(takers)
        self.told: list[Any] = []

    def offer(
        self, prompt: Prompt, known: TokenizedPrompt, model: str, adapter: str | None, engines: Any
    ) -> PassthroughOffer | None:
        self.told.append((model, adapter, list(engines)))
        return PassthroughOffer(model, (), known, self.takers)

    def observed(self, offer: PassthroughOffer, *told: Any) -> None:
        self.told.append(told)

    def refused(self, instance: str, offer: PassthroughOffer, answer: bytes | None) -> None:
        self.told.append((instance, answer))


def share(instance: str, longest: int | None) -> Any:
    cards = (ModelCard("m", "/m", None, longest), ModelCard("lora", "/l", "m", None))
    return SimpleNamespace(target=SimpleNamespace(instance=SimpleNamespace(id=instance, cards=cards)))


def ticket(*, pair: bool = False) -> Any:
    made = share("d", 100)
    made.attempt, made.record = SimpleNamespace(token_id_passthrough=False), SimpleNamespace(prompt_tokens=7)
    made.prefill = share("p", None) if pair else None
    if pair:
        made.prefill.leg = SimpleNamespace(token_id_passthrough=False)
    return made


def flags(of: Any) -> list[bool]:
    return [of.attempt.token_id_passthrough] + ([of.prefill.leg.token_id_passthrough] if of.prefill is not None else [])


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
def test_the_record_says_who_got_ids(pair: bool, takers: str, expected: list[bool]) -> None:
    handing: Any = Handing(*takers)
    made = ticket(pair=pair)
    assert offer_to(handing, made, PROMPT, SERVED, KNOWN) is not None
    assert flags(made) == expected
    engines = [PassthroughTarget("d", 100)] + [PassthroughTarget("p", None)] * pair
    assert handing.told == [("m", "lora", engines)], "each with the context that it says its base model has"


@pytest.mark.parametrize(
    ("served", "known"), [(None, KNOWN), (SERVED, UnknownIds("media")), (SERVED, KNOWN._replace(spelled=()))]
)
def test_without_ids_nobody_is_even_asked(served: Any, known: Any) -> None:
    handing: Any = Handing("d")
    made = ticket()
    assert offer_to(handing, made, PROMPT, served, known) is None
    assert asking(handing, None, made, UPSTREAMS, b"{}") is UPSTREAMS
    counted(handing, None, made)
    assert (handing.told, flags(made)) == ([], [False])


def test_an_offer_that_nobody_takes_changes_nothing_on_the_wire() -> None:
    handing: Any = Handing()
    made = ticket()
    offer = offer_to(handing, made, PROMPT, SERVED, KNOWN)
    assert asking(handing, offer, made, UPSTREAMS, b"{}") is UPSTREAMS


def test_a_refusal_is_written_down_and_told() -> None:
    handing: Any = Handing("d", "p")
    made = ticket(pair=True)
    offer = offer_to(handing, made, PROMPT, SERVED, KNOWN)
    asks = asking(handing, offer, made, UPSTREAMS, b"{}")
    assert isinstance(asks, TokenIdUpstreams)
    asks._refused("p", b"why")
    assert flags(made) == [True, False]
    asks._refused("d", None)
    assert flags(made) == [False, False]
    assert handing.told[1:] == [("p", b"why"), ("d", None)]


def test_the_end_s_count_is_held_against_ours() -> None:
    handing: Any = Handing("d")
    made = ticket()
    offer = offer_to(handing, made, PROMPT, SERVED, KNOWN)
    counted(handing, offer, made)
    assert handing.told[1:] == [("d", True, 7)]


def test_the_context_is_that_of_the_base_model() -> None:
    cards = [ModelCard("other", "/o", None, 5), ModelCard("m", "/m", None, 9)]
    assert [context_tokens(cards, name) for name in ("m", "other", "lora")] == [9, 5, None]
