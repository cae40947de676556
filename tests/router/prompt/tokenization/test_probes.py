"""The probes are requests that we can read and render, and cover what the engines' renderers differ in."""

from __future__ import annotations

import json

from router.prompt.api.parse import ReadOptions, read_prompt
from router.prompt.prompt import Chat, Text
from router.prompt.tokenization.local_tokenizer import LocalTokenizer
from router.prompt.tokenization.probes import DECLINED_TOOLS, SPECIAL_TEXT, list_probes


def test_every_probe_can_be_read_rendered_and_asked(local: LocalTokenizer) -> None:
    names = []
    for probe in list_probes():
        body = json.dumps({"model": "m", **probe.fields}).encode()
        prompt = read_prompt(probe.path, None, body, ReadOptions())
        assert isinstance(prompt.source, Chat | Text)
        assert len(local.tokenize(prompt.source)) > 5
        assert ("messages" in prompt.remote_fields) != ("prompt" in prompt.remote_fields)
        assert probe.is_chat == isinstance(prompt.source, Chat)
        names.append(probe.name)
    assert names == [
        *("text", "plain", "full-stop", "multi-turn", "unicode", "content-parts", "system-and-tools"),
        *("undescribed-tool", "tool-results", DECLINED_TOOLS, SPECIAL_TEXT),
    ]


def test_the_last_probe_spells_the_tokens_that_the_template_prints(local: LocalTokenizer) -> None:
    assert local.chat_tokens
    text = str(list_probes(local.chat_tokens)[-1].fields)
    assert all(token in text for token in local.chat_tokens)
    assert local.special_text.find(_chat(text))


def _chat(text: str) -> Chat:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()
    source = read_prompt("/v1/chat/completions", None, body, ReadOptions()).source
    assert isinstance(source, Chat)
    return source
