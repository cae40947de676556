"""Whatever was tokenised before, a body has the ids, keys and spelling that a router gives it which starts with it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.backends.remote_tokenizer import EngineTokenizer
from router.clock import SystemClock
from router.config.schema import TokensConfig as Settings
from router.errors import BadRequest
from router.kvcache.block_keys import Keyring
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.api import known_messages
from router.prompt.api.parse import ReadOptions, read_prompt
from router.prompt.prompt import UnknownIds
from router.prompt.tokenization import prompt_memory
from router.prompt.tokenization.incremental import KeyInputs
from router.prompt.tokenization.tokenization import Tokenization, _owner
from tests.router.prompt.api.test_known_messages import arrays
from tests.router.prompt.tokenization.families import FAMILIES, family, loaded, prepended
from tests.router.prompt.tokenization.test_incremental import run
from tests.suites.properties import examples

LOOKS_AHEAD = """\
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
    {{- '<s>' + m.role + (' last' if loop.index0 == ns.last else '') + (' end' if loop.last else '') }}
    {%- if loop.index0 > 0 and messages[loop.index0 - 1].role == m.role %}{{ ' again' }}{% endif %}
    {{- (m.content or '') | trim }}
{%- endfor %}
{%- if tools %}{{ tools | tojson }}{% endif %}"""
PARTS = """\
{%- for m in messages %}{{- '<s>' + m.role }}
    {%- for part in m.content %}{{ part.text }};{% endfor %}{{- '</s>' }}
{%- endfor %}"""

others = st.sampled_from(
    [
        "",
        ',"tools":[{"type":"function","function":{"name":"f","parameters":{"b":1,"a":2}}}]',
        ',"tools":[{"type":"function","function":{"name":"g"}}]',
        ',"cache_salt":"s"',
        ',"add_special_tokens":true',
        ',"add_generation_prompt":false',
        ',"add_generation_prompt":false,"continue_final_message":true',
        ',"chat_template_kwargs":{"a":1}',
        ',"messages":[{"role":"user","content":"the last one counts"}]',
        ',"truncate_prompt_tokens":1',
        ',"chat_template_kwargs":[]',
    ]
)


async def refuse(*_: Any, **__: Any) -> None:
    raise AssertionError("no engine is asked")


def start(name: str) -> Tokenization:
    settings = Settings(inline_chars=1 << 30, budget_ms=60_000.0)
    return Tokenization(settings, {"m": local(name)}, Keyring(7), EngineTokenizer(refuse), SystemClock())


@cache
def local(name: str) -> Any:
    if name in FAMILIES:
        return family(name)
    return loaded(prepended(), template={"looks ahead": LOOKS_AHEAD, "parts": PARTS}[name])


def tokenize(room: Tokenization, body: bytes, adapter: str | None) -> Any:
    try:
        prompt = read_prompt("/v1/chat/completions", None, body, ReadOptions(want_source=False))
        known = run(room.tokenize(prompt, "m", adapter, {4, 16}, []))
    except BadRequest as error:
        return str(error)
    if isinstance(known, UnknownIds):
        return known
    assert isinstance(known, TokenizedPrompt)
    return known.ids, known.keys, b",".join(known.json_ids), known.complete


@pytest.fixture(autouse=True, scope="module")
def remembers_short_chats() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(known_messages, "LEAST_BYTES", 0)
        patch.setattr(prompt_memory, "STEP_BYTES", 8)
        yield


@pytest.mark.parametrize("name", [*FAMILIES, "looks ahead", "parts"])
@given(
    arrays=arrays(),
    others=st.lists(others, min_size=6, max_size=6),
    adapters=st.lists(st.sampled_from([None, None, "a"]), min_size=6, max_size=6),
    order=st.lists(st.integers(0, 5), max_size=4),
)
@examples(15)
def test_any_bodies_in_any_order(
    name: str, arrays: list[str], others: list[str], adapters: list[str | None], order: list[int]
) -> None:
    room = start(name)
    bodies = [
        f'{{"model":"m","messages":{array}{other}}}'.encode() for array, other in zip(arrays, others, strict=False)
    ]
    for number in (*range(len(bodies)), *[one % len(bodies) for one in order]):
        fresh = start(name)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(known_messages, "LEAST_BYTES", 1 << 30)
            plain = tokenize(fresh, bodies[number], adapters[number])
        assert tokenize(room, bodies[number], adapters[number]) == plain
        fresh.close()
    room.close()


def test_turns_are_found() -> None:
    room = start("byte-level")
    turns = [f'{{"role":"user","content":"{number} {"words " * 20}"}}' for number in range(20)]
    found = []
    for length in (10, 12, 20, 15):
        array = f"[{','.join(turns[:length])}]".encode()
        known = room._prompt_memory.find(_owner(KeyInputs("m", None, None, frozenset())), array).known
        found.append(0 if known is None else len(known.messages))
        tokenize(room, b'{"model":"m","messages":' + array + b"}", None)
    assert found == [0, 10, 12, 20]
    assert room.memory.held_bytes > 0
    room.close()
