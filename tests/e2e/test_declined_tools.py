"""Chats whose `tool_choice` is none, before engines that leave their tools out and engines that do not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.conftest import MODEL, TOKENIZER, Json
from tests.fakes.engines import engine

CHAT = "/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "now", "description": "d " * 600, "parameters": {"type": "object"}}}


def declined(text: str) -> Json:
    messages = [{"role": "user", "content": text * 60}]
    return {"model": MODEL, "messages": messages, "tools": [TOOL], "tool_choice": "none", "max_tokens": 4}


@pytest.mark.parametrize("tokenizers", [{MODEL: {"path": TOKENIZER}}, {}])
@pytest.mark.parametrize("exclude_tools", [True, False])
async def test_their_prompts_are_those_of_the_engines(router: Any, tokenizers: Any, exclude_tools: bool) -> None:
    async with (
        engine(exclude_tools=exclude_tools) as a,
        engine(exclude_tools=exclude_tools) as b,
        router([a, b], tokenizers=tokenizers) as r,
    ):
        for text in ("a tale of ships ", "two tales of ships "):
            first = await r.record((await r.post(CHAT, declined(text))).raise_for_status())
            assert first["prompt_tokens_counted"] == first["prompt_tokens"]
            assert (first["prompt_tokens"] < 700) is exclude_tools
            await r.hear()
            again = await r.record(await r.post(CHAT, declined(text)))
            assert again["target"] == first["target"]
            assert again["attempts"][0]["predicted_tokens"] == again["cached_tokens"] > 100
