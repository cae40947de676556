"""The probes are requests that we can read and render, and cover what the engines' renderers differ in."""

from __future__ import annotations

from router.prompt.api.parse import ReadOptions, read_prompt
from router.prompt.prompt import Chat, Text
from router.prompt.tokenization.local_tokenizer import LocalTokenizer
from router.prompt.tokenization.probes import probe_bodies


def test_every_probe_can_be_read_rendered_and_asked(local: LocalTokenizer) -> None:
    names = []
    for name, path, body in probe_bodies("m"):
        prompt = read_prompt(path, None, body, ReadOptions())
        assert isinstance(prompt.source, Chat | Text)
        assert len(local.tokenize(prompt.source)) > 5
        assert ("messages" in prompt.remote_fields) != ("prompt" in prompt.remote_fields)
        names.append(name)
    assert {"text", "plain", "multi-turn", "unicode", "content-parts", "system-and-tools", "tool-results"} == set(names)
