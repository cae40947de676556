"""Which prompts bring their ids, which are held back to be compared, and what a count that differs does."""

from __future__ import annotations

import json
from array import array
from types import SimpleNamespace
from typing import Any

import pytest

from router.backends.token_ids.passthrough import (
    CHECK_EVERY,
    MAX_SHAPES,
    PassthroughOffer,
    PassthroughTarget,
    TokenIdPassthrough,
)
from router.backends.token_ids.support import InstanceSupport
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.api.parse import ReadOptions, read_prompt
from router.prompt.prompt import Endpoint, Prompt, UnknownIds

A, B = PassthroughTarget("a", 100), PassthroughTarget("b", 100)
IDS = TokenizedPrompt(array("I", [1, 2, 3]), True, "local", {}, 0.0, 0.0, (b"1,2", b"3"))


class Takers:
    """Those of a room that was told who takes ids."""

    def __init__(self, *instances: str) -> None:
        self.taking = set(instances)
        self.why: dict[str, str] = {}

    def accepts(self, instance: str) -> bool:
        return instance in self.taking

    def mark_failed(self, instance: str, model: str, why: str) -> None:
        self.taking.discard(instance)
        self.why[instance] = why

    def report(self) -> dict[str, InstanceSupport]:
        return {instance: InstanceSupport(True, "") for instance in self.taking}


class Scene:
    def __init__(self, *, on: bool = True) -> None:
        self.takers = Takers("a", "b")
        self.believed = True
        self.proved = {"a": True, "b": True}  # whether the proof covered texts that spell special tokens
        self.handing = TokenIdPassthrough(self.takers, self, on=on)  # type: ignore[arg-type]

    def source(self, model: str, endpoint: Endpoint) -> str | None:
        return "local" if self.believed else None

    def passes(self, model: str, instance: str, tokens: TokenizedPrompt) -> bool:
        return instance in self.proved and (self.proved[instance] or not tokens.special_text)

    def offer(
        self, prompt: Prompt | None = None, known: Any = IDS, *engines: PassthroughTarget
    ) -> PassthroughOffer | None:
        return self.handing.offer(prompt or chat(), known, "m", None, engines or (A,))

    def handed(self, prompt: Prompt | None = None, known: Any = IDS, *engines: PassthroughTarget) -> list[str]:
        offer = self.offer(prompt, known, *engines)
        return [] if offer is None else sorted(offer.instances)

    def counted(self, tokens: int | None, prompt: Prompt | None = None, *, handed: bool = False) -> None:
        """An answer to a prompt, as its engine counted it."""
        offer = self.offer(prompt)
        assert offer is not None
        self.handing.on_answer(offer, "a", handed, tokens)

    @property
    def unhanded(self) -> dict[str, int]:
        return dict(self.handing.report().not_sent)


def chat(path: str = "/v1/chat/completions", **fields: Any) -> Prompt:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, **fields}
    return read_prompt(path, None, json.dumps(body).encode(), ReadOptions())


@pytest.fixture
def scene() -> Scene:
    """In which one prompt of `chat`'s kind has been counted."""
    scene = Scene()
    scene.counted(3)
    return scene


def test_nothing_is_handed_before_an_engine_has_counted_the_same() -> None:
    scene = Scene()
    assert scene.handed() == []
    scene.counted(None)
    assert scene.handed() == [], "an answer without usage says nothing"
    scene.counted(3)
    assert scene.handed() == ["a"]
    assert scene.handing.report().sent == {"m": 1}
    assert scene.unhanded == {"check": 4}


def test_a_handed_prompt_s_count_is_ours_and_proves_nothing() -> None:
    scene = Scene()
    scene.counted(3, handed=True)
    assert scene.handed() == []


def test_every_64th_of_a_kind_is_compared(scene: Scene) -> None:
    went = [scene.handed() != [] for _ in range(3 * CHECK_EVERY)]
    assert [i + 1 for i, handed in enumerate(went) if not handed] == [64, 128, 192]


def test_kinds_are_counted_apart(scene: Scene) -> None:
    tools = chat(tools=[{"type": "function", "function": {"name": "f"}}])
    assert scene.handed(tools) == []
    scene.counted(3, tools)
    for _ in range(CHECK_EVERY - 1):
        assert scene.handed() == ["a"]
    assert scene.handed(tools) == ["a"]
    assert scene.handed() == []


def test_kinds_that_clients_invent_are_not_kept_for_ever(scene: Scene) -> None:
    for number in range(MAX_SHAPES):
        scene.counted(3, chat(chat_template_kwargs={f"x{number}": 1}))
        if number == MAX_SHAPES // 2:
            assert scene.handed() == ["a"], "met again, it is not the oldest any more"
    assert scene.handed() == ["a"]
    assert scene.handed(chat(chat_template_kwargs={"x0": 1})) == []
    assert scene.handed(chat(chat_template_kwargs={f"x{MAX_SHAPES - 1}": 1})) == ["a"]


def test_one_other_count_and_every_kind_has_to_be_seen_anew(scene: Scene) -> None:
    tools = chat(tools=[{"type": "function", "function": {"name": "f"}}])
    scene.counted(3, tools)
    scene.counted(4)
    assert scene.handed() == scene.handed(tools) == []
    assert scene.takers.why == {}, "the engine made its own ids"
    scene.counted(3)
    assert scene.handed() == ["a"]


def test_an_engine_that_counts_otherwise_than_the_ids_it_got_does_not_take_them(scene: Scene) -> None:
    scene.counted(5, handed=True)
    assert scene.takers.why == {"a": "given 3 ids, it counted 5"}


def test_a_refusal_by_name_is_the_engine_s_and_any_other_the_client_s(scene: Scene) -> None:
    offer = scene.offer()
    assert offer is not None
    scene.handing.on_refused("a", offer, b'{"error":{"param":"n"}}')
    scene.handing.on_refused("a", offer, None)
    assert scene.handed() == ["a"]
    scene.handing.on_refused("a", offer, b'{"error":{"param":"kv_transfer_params.prompt_token_ids"}}')
    assert scene.handed() == []
    assert scene.unhanded["refused"] == 3


def test_only_instances_that_take_ids_get_them(scene: Scene) -> None:
    assert scene.handed(None, IDS, A, B) == ["a", "b"]
    scene.takers.taking = {"b"}
    assert scene.handed(None, IDS, A, B) == ["b"]
    assert scene.handed() == []
    assert scene.unhanded == {"check": 1, "unproven": 1}


@pytest.mark.parametrize(("context", "fits"), [(4, True), (3, False), (2, False), (None, False)])
def test_a_prompt_must_be_shorter_than_the_context(scene: Scene, context: int | None, fits: bool) -> None:
    assert (scene.handed(None, IDS, PassthroughTarget("a", context)) != []) is fits
    assert scene.unhanded.get("length", 0) == (not fits)


def test_a_tokenizer_that_is_not_believed_hands_nothing(scene: Scene) -> None:
    scene.believed = False
    assert scene.handed() == []
    assert scene.unhanded["distrusted"] == 1


def test_only_instances_that_proved_the_ids_get_them(scene: Scene) -> None:
    del scene.proved["a"]
    assert scene.handed(None, IDS, A, B) == ["b"]
    assert scene.handed() == []
    assert scene.unhanded == {"check": 1, "unproven": 1}


def test_a_text_that_spells_special_tokens_goes_only_where_the_proof_covered_it(scene: Scene) -> None:
    scene.proved["a"] = False
    assert scene.handed(None, IDS, A, B) == ["b"]
    assert scene.handed() == []
    assert scene.unhanded == {"check": 1, "special_text": 1}
    assert scene.handed(None, IDS._replace(special_text=False)) == ["a"]


def test_what_quotes_the_prompt_is_rendered_by_the_engine(scene: Scene) -> None:
    assert scene.handed(chat(return_prompt_text=True)) == []
    assert scene.unhanded["prompt_text"] == 1


@pytest.mark.parametrize(
    "known",
    [
        UnknownIds("media"),
        IDS._replace(complete=False),
        IDS._replace(source="remote"),
        IDS._replace(source="given"),
        IDS._replace(json_ids=()),
    ],
)
def test_without_ids_of_our_own_there_is_nothing_to_offer(scene: Scene, known: Any) -> None:
    assert scene.offer(None, known) is None


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_other_endpoints_take_none(scene: Scene, path: str) -> None:
    assert scene.offer(chat(path, input="hi"), IDS) is None


def test_off_is_off() -> None:
    scene = Scene(on=False)
    scene.handing.on_joined("a", "m")
    assert scene.offer() is None
    assert scene.unhanded == {}


def test_instances_are_told_of_only_while_it_is_on() -> None:
    told: list[str] = []
    takers: Any = SimpleNamespace(on_joined=lambda *which: told.append(which), forget=lambda which: told.append(which))
    handing = TokenIdPassthrough(takers, Scene(), on=True)
    handing.on_joined("a", "m")
    handing.forget("a")
    TokenIdPassthrough(takers, Scene(), on=False).on_joined("b", "m")
    assert told == [("a", "m"), "a"]
