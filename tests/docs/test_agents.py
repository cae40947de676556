"""The page on agents: what it writes of real clients' names for their sessions is what they were recorded to send."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from router.prompt.api.parse import ReadOptions, read_prompt, read_request_headers
from router.prompt.prompt import Prompt
from tests.paths import DATA, ROOT

PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/messages")
CLIENTS = {file.stem: json.loads(file.read_text()) for file in sorted((DATA / "clients").glob("*.json"))}
BY_MESSAGES = "its messages"

Headers = dict[bytes, bytes]


def read(path: str, headers: Headers, body: dict[str, Any]) -> Prompt:
    return read_prompt(path, None, json.dumps(body).encode(), ReadOptions(), read_request_headers(headers))


def counting(path: str, headers: Headers, body: dict[str, Any]) -> Iterator[str]:
    """Yield the headers and fields without which the request would have another session, parent or program."""

    def names(prompt: Prompt) -> tuple[str | None, ...]:
        return prompt.session, prompt.parent, prompt.program

    whole = names(read(path, headers, body))
    for header in headers:
        if names(read(path, {name: value for name, value in headers.items() if name != header}, body)) != whole:
            yield header.decode()
    for field in set(body) - {"messages", "input", "model"}:
        if names(read(path, headers, {name: value for name, value in body.items() if name != field})) != whole:
            yield "metadata.user_id" if field == "metadata" else field


def table() -> dict[str, str]:
    page = (ROOT / "docs" / "features" / "agents.md").read_text()
    section = page.partition("## What clients send")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", section, re.MULTILINE))


def test_every_recorded_client_is_on_the_page() -> None:
    recorded = [f"{sent['client']} {sent['version']}" for sent in CLIENTS.values()]
    assert list(table()) == ["client", *recorded]


@pytest.mark.parametrize("client", CLIENTS)
def test_the_page_has_the_names_that_a_client_sends(client: str) -> None:
    recorded = CLIENTS[client]
    found: set[str] = set()
    for sent in recorded["requests"]:
        path = sent["path"].partition("?")[0]
        if path in PATHS and sent["method"] == "POST":
            headers = {name.lower().encode(): value.encode() for name, value in sent["headers"]}
            found.update(counting(path, headers, sent["body"]))
    cell = table()[f"{recorded['client']} {recorded['version']}"]
    assert (BY_MESSAGES in cell) == (not found)
    if found:
        assert set(re.findall(r"`([^`]+)`", cell)) == found
