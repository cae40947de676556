"""Chats whose earlier turns a model renders otherwise than before: where the prompts part, by comparing their ids."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from router.backends.remote_tokenizer import EngineTokenizer
from router.clock import SystemClock
from router.config.schema import TokenizerSource, TokensConfig
from router.kvcache.block_keys import Keyring
from router.kvcache.tokenized_prompt import PrefixEnd, TokenizedPrompt
from router.prompt.api.parse import ReadOptions, read_prompt
from router.prompt.common_prefix import common_length
from router.prompt.prompt import Chat
from router.prompt.tokenization.local_tokenizer import LocalTokenizer
from router.prompt.tokenization.model_folder import load
from router.prompt.tokenization.tokenization import Tokenization
from tests.fakes.tekken import tekken

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
QWEN3_LIKE = """\
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- if tools %}{{- '<s>system' + tools | tojson + '</s>' }}{% endif %}
{%- for m in messages %}
    {{- '<s>' + m.role }}
    {%- if m.reasoning and loop.index0 > ns.last %}{{- '<think>' + m.reasoning + '</think>' }}{% endif %}
    {{- (m.content or '') + (m.tool_calls | tojson if m.tool_calls else '') + '</s>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<s>assistant' }}{% endif %}"""
TOOL = {"type": "function", "function": {"name": "now", "description": "The time", "parameters": {"type": "object"}}}
THINKING = {"chat_template_kwargs": {"thinking": True}}

Body = dict[str, Any]


async def no_engine(*args: object, **options: object) -> None:
    """Answers nothing."""


def words(seed: str, count: int = 2000) -> str:
    dice = random.Random(seed)
    return " ".join(dice.choice(("warm", "cold", "block", "token", "Zürich", "12", "engine")) for _ in range(count))


def user(text: str) -> Body:
    return {"role": "user", "content": words(text)}


def turns(*, tools: bool, reasoning: bool = True) -> list[list[Body]]:
    """Return the messages of four requests: a question, its tool's result, a next question, and the one after that."""
    thought = {"reasoning": words("thought")} if reasoning else {}
    call = {"id": "call00001", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    asked = [{"role": "system", "content": words("system")}, user("one")]
    if tools:
        called = [{"role": "assistant", **thought, "tool_calls": [call]}]
        called += [{"role": "tool", "tool_call_id": "call00001", "content": words("result")}]
    else:
        called = [{"role": "assistant", **thought, "content": "Wait."}, user("go on")]
    answered = [{"role": "assistant", **thought, "content": words("answer")}, user("two")]
    again = [{"role": "assistant", **thought, "content": "Yes."}, user("three")]
    return [asked, [*asked, *called], [*asked, *called, *answered], [*asked, *called, *answered, *again]]


def hugging_face(model_dir: Path, folder: Path, source: Body) -> LocalTokenizer:
    shutil.copytree(model_dir, folder)
    return load(TokenizerSource(path=str(folder), **source), "tokenizers.m", lambda: 0.0)


def mode(name: str, model_dir: Path, folder: Path) -> LocalTokenizer:
    if name.startswith("v"):
        folder.mkdir()
        (folder / "tekken.json").write_text(json.dumps(tekken(name)))
        return load(TokenizerSource(path=str(folder)), "tokenizers.m", lambda: 0.0)
    if name == "template":
        (folder.parent / "template.jinja").write_text(QWEN3_LIKE)
        return hugging_face(model_dir, folder, {"chat_template": str(folder.parent / "template.jinja")})
    return hugging_face(model_dir, folder, {"renderer": name})


def read(body: Body, path: str = CHAT) -> Any:
    return read_prompt(path, "application/json", json.dumps({"model": "m", **body}).encode(), ReadOptions())


def find_ends(local: LocalTokenizer, bodies: list[Body], path: str = CHAT) -> list[PrefixEnd | None]:
    """Return what the router finds for requests in this order."""
    tokenization = Tokenization(TokensConfig(inline_chars=0), {"m": local}, Keyring(7), NO_ENGINE, SystemClock())
    ends = []
    for body in bodies:
        known = asyncio.run(tokenization.tokenize(read(body, path), "m", None, {16}, []))
        assert isinstance(known, TokenizedPrompt)
        ends.append(known.prefix_end)
    tokenization.close()
    return ends


NO_ENGINE = EngineTokenizer(no_engine)


def compare(local: LocalTokenizer, bodies: list[Body], path: str = CHAT) -> list[tuple[int, int]]:
    """Return of each request after the first how many tokens repeat the request before, and its number of tokens."""

    def ids(body: Body) -> Any:
        source = read(body, path).source
        source = source.read(10**7).source if not isinstance(source, Chat) else source
        return local.tokenize(source)

    prompts = [ids(body) for body in bodies]
    return [(common_length(*pair), len(pair[0])) for pair in pairwise(prompts)]


def test_items_of_responses_are_compared_likewise(model_dir: Path, tmp_path: Path) -> None:
    local = mode("harmony", model_dir, tmp_path / "model")
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": words("thought")}]}
    call = {"type": "function_call", "call_id": "c", "name": "now", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": words("result")}
    answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": words("answer")}]}
    asked = [user("one"), thought, call, result]
    bodies = [
        {"input": items, "tools": [{"type": "function", "name": "now", "parameters": {}}]}
        for items in (asked[:1], asked, [*asked, thought, answer, user("two")])
    ]
    (_, (shared, whole)) = compare(local, bodies, RESPONSES)
    assert shared < whole
    assert find_ends(local, bodies, RESPONSES) == [None, None, PrefixEnd(shared, whole, "reasoning")]


@pytest.mark.parametrize(
    ("name", "tools", "fields", "causes"),
    [
        ("harmony", True, {}, (None, "reasoning", None)),
        ("deepseek_v32", False, THINKING, (None, None, None)),  # a few tokens: <think>
        ("deepseek_v4", False, THINKING, (None, None, None)),  # a few tokens: <think>
        ("deepseek_v32", True, THINKING, (None, "reasoning", None)),
        ("deepseek_v4", True, THINKING, (None, None, None)),
        ("v3", True, {}, (None, "template", "template")),  # the system prompt moves, too
        ("v7", True, {}, (None, "tools", "tools")),
        ("v13", True, {}, (None, None, None)),
        ("template", True, {}, (None, "reasoning", None)),
    ],
)
def test_where_a_prompt_stops_to_repeat_the_turn_before(
    name: str, tools: bool, fields: Body, causes: tuple[str | None, ...], model_dir: Path, tmp_path: Path
) -> None:
    local = mode(name, model_dir, tmp_path / "model")
    declared = {"tools": [TOOL]} if tools else {}
    reasoning = not name.startswith("v")
    bodies = [{"messages": messages, **declared, **fields} for messages in turns(tools=tools, reasoning=reasoning)]
    ends = find_ends(local, bodies)
    found = compare(local, bodies)
    assert ends[0] is None
    for end, cause, (shared, whole) in zip(ends[1:], causes, found, strict=True):
        if cause is None:
            assert end is None
        else:
            assert end == (shared, whole, cause)
