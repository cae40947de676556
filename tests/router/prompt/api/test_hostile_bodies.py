"""No body makes the router fail: it becomes a prompt, whatever is done with that later, or a refusal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.backends.fetch import HttpAnswer
from router.backends.remote_tokenizer import EngineTokenizer
from router.backends.vllm.continuation import continuation_body, text_continuation_body
from router.backends.vllm.disaggregation import can_split, decode_body, prefill_body
from router.clock import SystemClock
from router.config.schema import TokensConfig
from router.errors import BadRequest
from router.kvcache.block_keys import Keyring
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.api import known_messages
from router.prompt.api.conversation_id import read_turns
from router.prompt.api.parameters import AliasParameters
from router.prompt.api.parse import ReadOptions, read_prompt
from router.prompt.body_rewrite import UNREADABLE, open_body, requests_usage, set_members
from router.prompt.prompt import Endpoint, Prompt, UnknownIds, Unread
from router.prompt.tokenization.local_tokenizer import LocalTokenizer
from router.prompt.tokenization.tokenization import Tokenization
from router.tenants.isolation import CacheScope, derive_salt_key
from tests.router.prompt.api.hostile_bodies import PIECES, VALID, field_names, hostile_bodies, render
from tests.suites.properties import examples

SCOPE = CacheScope(derive_salt_key(7), "somebody")
PARAMETERS = AliasParameters({"temperature": 0.5, "stop": "x"}, 10)
GIVEN = msgspec.json.Decoder(dict[str, msgspec.Raw])


def all_options() -> list[ReadOptions]:
    flags = (False, True)
    return [
        ReadOptions(continues=continues, want_source=want_source, inject_usage=inject_usage)
        for continues in flags
        for want_source in flags
        for inject_usage in flags
    ]


OPTIONS = all_options()


def read(path: str, body: bytes, options: ReadOptions, scope: CacheScope | None = None) -> Prompt | BadRequest:
    try:
        return read_prompt(path, "application/json", body, options, scope=scope)
    except BadRequest as refusal:
        return refusal


def use(prompt: Prompt) -> None:
    """Do with a prompt what the request's path may do with it, up to its tokens."""
    read_turns(prompt)
    msgspec.json.encode((prompt.model, prompt.salt, prompt.session, prompt.parent, prompt.program))
    try:
        changes = PARAMETERS.find_changes(prompt.endpoint, open_body(prompt.body, ()).members)
        set_members(prompt.body, changes | {"model": msgspec.Raw(b'"other"')})
    except BadRequest:
        pass
    if prompt.endpoint is Endpoint.OTHER:
        return
    if can_split(prompt.endpoint, prompt.body):
        GIVEN.decode(prefill_body(prompt.endpoint, prompt.body, b"{}"))
        GIVEN.decode(decode_body(prompt.body, b"{}"))
    if prompt.uncontinuable is None:
        requests_usage(prompt.body)
        continuation_body(prompt.endpoint, prompt.body, b"1", 1)
        text_continuation_body(prompt.endpoint, prompt.body, b"hi", 1)


@pytest.mark.parametrize("path", VALID)
@pytest.mark.parametrize("options", OPTIONS)
def test_every_body_is_a_prompt_or_a_refusal(path: str, options: ReadOptions) -> None:
    kinds = set()
    for body in hostile_bodies(path):
        found = read(path, body, options)
        kinds.add(type(found))
        if isinstance(found, Prompt):
            use(found)
    assert kinds == {Prompt, BadRequest}


@pytest.mark.parametrize("path", VALID)
def test_a_scope_changes_nothing_about_that(path: str) -> None:
    for body in hostile_bodies(path):
        found = read(path, body, OPTIONS[-1], SCOPE)
        if isinstance(found, Prompt):
            use(found)
            if found.endpoint is not Endpoint.OTHER:
                assert found.salt is not None


@pytest.mark.parametrize("path", [path for path in VALID if path != "/v1/embeddings"])
def test_continuation_refuses_what_is_refused_without_it(path: str) -> None:
    """The reader of whole bodies is a short cut: it may refuse nothing by itself, and accept nothing."""
    plain, continued = ReadOptions(), ReadOptions(continues=True)
    for body in hostile_bodies(path):
        one, other = read(path, body, plain), read(path, body, continued)
        assert type(one) is type(other), body[:200]
        if isinstance(one, BadRequest) and isinstance(other, BadRequest):
            assert (one.message, one.param) == (other.message, other.param)


@st.composite
def mangled(draw: st.DrawFn) -> tuple[str, bytes]:
    """A valid request of which several fields, and some bytes, are not what they should be."""
    path = draw(st.sampled_from(list(VALID)))
    members = dict(VALID[path])
    for name in draw(st.lists(st.sampled_from(field_names(path)), max_size=4)):
        members[name] = draw(st.sampled_from(PIECES))
    body = bytearray(render(members))
    for at, byte in draw(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), max_size=3)):
        body[at % len(body)] = byte
    end = draw(st.none() | st.integers(0, 300))
    return path, bytes(body if end is None else body[:end])


@examples(300)
@given(mangled(), st.sampled_from(OPTIONS), st.sampled_from([None, SCOPE]))
def test_mangled_bodies(request: tuple[str, bytes], options: ReadOptions, scope: CacheScope | None) -> None:
    found = read(*request, options, scope)
    if isinstance(found, Prompt):
        use(found)


# their tokens


async def fetch(
    instance: str, path: str, body: bytes | None = None, *, timeout_s: float, limit_bytes: int = 0
) -> HttpAnswer:
    """An engine that makes a token of every prompt."""
    msgspec.json.decode(body)
    return HttpAnswer(200, b'{"count":1,"max_model_len":9,"tokens":[1]}')


@pytest.fixture
def tokens(local: LocalTokenizer) -> Iterator[Tokenization]:
    settings = TokensConfig(budget_ms=60_000.0)
    made = Tokenization(settings, {"here": local}, Keyring(7), EngineTokenizer(fetch), SystemClock())
    yield made
    made.close()


@pytest.mark.parametrize("model", ["here", "there"])
@pytest.mark.parametrize("path", [path for path in VALID if path != "/v1/embeddings"])
async def test_they_are_tokenised_or_unknown(tokens: Tokenization, path: str, model: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(known_messages, "LEAST_BYTES", 1)  # short chats take the way of long ones, too
    ends = set()
    for options in (ReadOptions(want_source=False), ReadOptions(want_source=True)):
        for body in hostile_bodies(path):
            found = read(path, body, options)
            if not isinstance(found, Prompt):
                continue
            try:
                ends.add(type(await tokens.tokenize(found, model, None, {16}, ["a"])))
            except BadRequest:
                assert isinstance(found.source, Unread)
    assert ends == {TokenizedPrompt, UnknownIds}


def test_what_msgspec_raises_is_one_set() -> None:
    """Found out from the library, not from memory."""
    raised = set()
    for piece in PIECES:
        for kind in (Any, dict[str, msgspec.Raw], str, list[int]):
            try:
                msgspec.json.decode(piece, type=kind)
            except Exception as error:  # noqa: BLE001  which ones is the question
                raised.add(type(error))
    assert {msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError} == raised
    assert all(issubclass(kind, UNREADABLE) for kind in raised)
