"""What requests tell of their session, its parent and its program."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.prompt.api.lineage import MAX_CHARACTERS, Lineage, read_header_lineage
from router.prompt.api.parse import NO_HEADERS, ReadOptions, read_prompt, read_request_headers
from router.prompt.prompt import Prompt

CHAT = "/v1/chat/completions"
CLAUDE = {b"x-claude-code-session-id": b"run"}
CODEX = {b"session-id": b"run", b"thread-id": b"run"}


@pytest.mark.parametrize(
    ("fields", "lineage"),
    [
        ({b"x-session-id": b"s"}, Lineage("s", None, "s")),
        ({b"x-session-id": b"s", b"x-parent-session-id": b"p"}, Lineage("s", "p", "p")),
        ({b"x-parent-session-id": b"p"}, None),
        ({b"x-session-id": b"s", b"x-parent-session-id": b"s"}, Lineage("s", None, "s")),
        ({b"x-dynamo-session-id": b"s", b"x-dynamo-parent-session-id": b"p"}, Lineage("s", "p", "p")),
        (CLAUDE, Lineage("run", None, "run")),
        (CLAUDE | {b"x-claude-code-agent-id": b"a"}, Lineage("run\x1fa", "run", "run")),
        (
            CLAUDE | {b"x-claude-code-agent-id": b"b", b"x-claude-code-parent-agent-id": b"a"},
            Lineage("run\x1fb", "run\x1fa", "run"),
        ),
        (CODEX, Lineage("run", None, "run")),
        (CODEX | {b"thread-id": b"t", b"x-codex-parent-thread-id": b"run"}, Lineage("t", "run", "run")),
        (CODEX | {b"thread-id": b"u", b"x-codex-parent-thread-id": b"t"}, Lineage("u", "t", "run")),
        ({b"session-id": b"run"}, Lineage("run", None, "run")),
        ({b"thread-id": b"t"}, Lineage("t", None, "t")),
        ({b"x-session-id": b""} | CLAUDE, Lineage("run", None, "run")),
        ({b"x-session-id": b"s" * (MAX_CHARACTERS + 1)} | CLAUDE, Lineage("run", None, "run")),
        ({b"x-session-id": b"s\x1ft"} | CLAUDE, Lineage("run", None, "run")),
        ({b"x-session-id": b"\x1f"}, None),
        (CLAUDE | {b"x-claude-code-agent-id": b"a\x1fb"}, Lineage("run", None, "run")),
        ({b"x-session-id": b"s/t", b"x-parent-session-id": b"\x1f"}, Lineage("s/t", None, "s/t")),
        ({b"x-session-id": b"s" * MAX_CHARACTERS}, Lineage("s" * MAX_CHARACTERS, None, "s" * MAX_CHARACTERS)),
        ({}, None),
    ],
)
def test_what_clients_send(fields: dict[bytes, bytes], lineage: Lineage | None) -> None:
    assert read_header_lineage(fields) == lineage
    assert read_request_headers(fields).lineage == lineage


def test_joined_names_meet_no_others() -> None:
    """By `/` the session `run` with the agent `a/b` was `run/a` with `b`, and a session called so."""
    texts = [b"a", b"b", b"a/b", b"b/a", b"a/b/a", b" / ", b"/", b"\xc3\xa9"]
    found = [read_header_lineage({b"x-session-id": text}) for text in texts]
    for session in texts:
        for agent in texts:
            fields = {b"x-claude-code-session-id": session, b"x-claude-code-agent-id": agent}
            found.append(read_header_lineage(fields))
    assert None not in found
    assert len({lineage.session for lineage in found if lineage is not None}) == len(found)


def test_names_of_two_clients_are_never_mixed() -> None:
    ours = {b"x-session-id": b"s"}
    assert read_header_lineage(ours | CLAUDE | {b"x-claude-code-agent-id": b"a"} | CODEX) == Lineage("s", None, "s")
    dynamo = {b"x-dynamo-session-id": b"d", b"x-parent-session-id": b"p"}
    assert read_header_lineage(dynamo | CLAUDE) == Lineage("d", None, "d")


def test_a_parent_alone_needs_no_reading() -> None:
    assert read_request_headers({b"x-parent-session-id": b"p"}) is NO_HEADERS


def read(headers: dict[bytes, bytes] | None = None, path: str = CHAT, strip: bool = True, **fields: Any) -> Prompt:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}).encode()
    options = ReadOptions() if strip else ReadOptions(frozenset())
    return read_prompt(path, "application/json", body, options, read_request_headers(headers or {}))


def names(prompt: Prompt) -> tuple[str | None, str | None, str | None]:
    return prompt.session, prompt.parent, prompt.program


def context(**fields: Any) -> dict[str, Any]:
    return {"agentic_context": fields}


@pytest.mark.parametrize("strip", [True, False])
def test_the_body_is_read_before_its_fields_are_stripped(strip: bool) -> None:
    prompt = read(strip=strip, vllm_xargs=context(program_id="s", parent_program_id="p", root_program_id="r"))
    assert names(prompt) == ("s", "p", "r")
    assert (b"vllm_xargs" in prompt.body) is not strip


@pytest.mark.parametrize(
    ("xargs", "lineage"),
    [
        (context(program_id="s"), ("s", None, "s")),
        (context(program_id="s", parent_program_id="p"), ("s", "p", "p")),
        (context(program_id="s", parent_program_id="p", root_program_id="r", task_id="t"), ("s", "p", "t")),
        ({"agentic_context": json.dumps({"program_id": "s", "parent_program_id": "p"})}, ("s", "p", "p")),
        (context(program_id="s", parent_program_id=7, root_program_id=["r"]), ("s", None, "s")),
        (context(program_id=""), ("user", None, "user")),
        (context(program_id="s\x1ft"), ("user", None, "user")),
        (context(program_id="s", parent_program_id="p\x1fq", task_id="\x1f"), ("s", None, "s")),
        (context(program_id=7), ("user", None, "user")),
        (context(program_id="s" * (MAX_CHARACTERS + 1)), ("user", None, "user")),
        (context(program_id="s", more="x" * 20_000), ("user", None, "user")),
        ({"agentic_context": "{"}, ("user", None, "user")),
        ({"agentic_context": '"s"'}, ("user", None, "user")),
        ({"agentic_context": None}, ("user", None, "user")),
        (["agentic_context"], ("user", None, "user")),
        ("agentic_context", ("user", None, "user")),
        (None, ("user", None, "user")),
    ],
)
def test_agentic_context(xargs: Any, lineage: tuple[str | None, ...]) -> None:
    assert names(read(vllm_xargs=xargs, user="user")) == lineage


def test_headers_come_before_the_body_and_context_before_users() -> None:
    assert names(read(CLAUDE, vllm_xargs=context(program_id="s"), user="user")) == ("run", None, "run")
    assert names(read(session_id="x", user="user")) == ("x", None, "x")
    assert names(read(metadata={"user_id": "u"})) == ("u", None, "u")
    assert names(read()) == (None, None, None)


BODY_NAMES: list[dict[str, Any]] = [
    {"session_id": "session"},
    {"conversation": "conv"},
    {"prompt_cache_key": "key"},
    {"user": "user"},
    {"metadata": {"user_id": "meta"}},
    {"safety_identifier": "safety"},
]
"""Names in bodies, those of conversations before those of users."""


def fields_of(path: str) -> dict[str, Any]:
    return {CHAT: {}, "/v1/responses": {"input": "hi"}, "/v1/completions": {"prompt": "hi"}}.get(path, {})


@pytest.mark.parametrize("path", [CHAT, "/v1/responses", "/v1/completions", "/v1/messages", "/v1/embeddings"])
def test_names_of_conversations_come_before_names_of_users(path: str) -> None:
    texts = ["session", "conv", "key", "user", "meta", "safety"]
    for first, text in enumerate(texts):
        fields = {name: value for fields in BODY_NAMES[first:] for name, value in fields.items()}
        if text == "conv" and path != "/v1/responses":
            text = "key"  # other endpoints have no conversations
        assert names(read(None, path, **fields, **fields_of(path))) == (text, None, text)


NO_IDS: list[dict[str, Any]] = [{}, {"id": 7}, {"id": ""}, {"id": None}, {"id": ["name"]}, {"id": "\x1f"}]
NO_NAMES = [7, 0, True, None, "", "a\x1fb", [], ["name"], *NO_IDS, 1e300]


@pytest.mark.parametrize("bad", [*NO_NAMES, "x" * (MAX_CHARACTERS + 1), "x" * 20_000, {"id": "x" * 20_000}])
@pytest.mark.parametrize("field", ["session_id", "conversation", "prompt_cache_key", "user", "safety_identifier"])
@pytest.mark.parametrize("path", [CHAT, "/v1/responses", "/v1/embeddings"])
def test_what_is_no_name_is_passed_over_and_left_to_the_engine(path: str, field: str, bad: Any) -> None:
    prompt = read(None, path, **{field: bad}, metadata={"user_id": "meta"}, **fields_of(path))
    assert names(prompt) == ("meta", None, "meta")
    assert json.loads(prompt.body)[field] == bad


def test_a_conversation_is_a_name_or_an_object_with_an_id() -> None:
    named = read(None, "/v1/responses", input="hi", conversation={"id": "conv"}, user="user")
    assert names(named) == ("conv", None, "conv")
    assert names(read(session_id={"id": "s"}, user="user")) == ("user", None, "user"), "no conversation"
    assert names(read(prompt_cache_key={"id": "s"})) == (None, None, None)


def test_a_sub_agents_headers_name_it_and_its_cache_key_is_its_parents() -> None:
    """As Codex sends them: the key is the same for all threads of a run."""
    sub = {b"session-id": b"run", b"thread-id": b"t", b"x-codex-parent-thread-id": b"run"}
    fields = {"input": "hi", "prompt_cache_key": "run"}
    assert names(read(sub, "/v1/responses", **fields)) == ("t", "run", "run")
    assert names(read(None, "/v1/responses", **fields)) == ("run", None, "run")
    assert names(read(vllm_xargs=context(program_id="s"), prompt_cache_key="run")) == ("s", None, "s")


def test_endpoints_that_are_placed_by_load_know_their_session_too() -> None:
    headers = {b"x-session-id": b"s", b"x-parent-session-id": b"p"}
    assert names(read(headers, "/v1/embeddings")) == ("s", "p", "p")
    assert names(read(None, "/v1/embeddings", user="user")) == ("user", None, "user")


NAMES = st.sampled_from(
    [
        b"x-session-id", b"x-parent-session-id", b"x-dynamo-session-id", b"x-dynamo-parent-session-id", b"session-id",
        b"thread-id", b"x-codex-parent-thread-id", b"x-claude-code-session-id", b"x-claude-code-agent-id",
        b"x-claude-code-parent-agent-id",
    ]
)  # fmt: skip


@given(st.dictionaries(NAMES, st.binary(max_size=3)))
def test_no_session_is_its_own_parent_and_a_family_has_a_name(fields: dict[bytes, bytes]) -> None:
    lineage = read_header_lineage(fields)
    if lineage is not None:
        assert lineage.session
        assert lineage.program
        assert lineage.parent not in ("", lineage.session)
