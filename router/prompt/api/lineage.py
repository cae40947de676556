"""Lineage of a request: its session, the session that started it, and the first session of their family.

A session is a chain of turns, in which each prompt continues the one before: a user's agent, or a sub-agent of it.
A program is an agent with all its sub-agents, named by its first session. The first row of this table whose session
a request names determines all three; rows are never mixed, so that a gateway's names do not meet a client's.

       session                                       parent                         program
    1  x-session-id                                  x-parent-session-id            the parent
    2  x-dynamo-session-id                           x-dynamo-parent-session-id     the parent
    3  x-claude-code-session-id, -agent-id           -parent-agent-id, the session  x-claude-code-session-id
    4  thread-id, session-id                         x-codex-parent-thread-id       session-id
    5  vllm_xargs.agentic_context: program_id        parent_program_id              task_id, root_program_id
    6  session_id, conversation, prompt_cache_key,   none                           the session
       user, metadata.user_id, safety_identifier

If a row names no program, the program is the parent, or without a parent the session itself. Rows 1 and 2 name only
the direct parent: a family with sub-agents of sub-agents counts as several. Claude Code's agent ids are unique only
in their session, so the session's name consists of both ids, joined by a character that no name may have: a name
with that character is ignored. Row 6 is read from the body, and its first name counts: those of conversations come
before those of users. `conversation` (a name, or an object with an `id`) exists in `/v1/responses` only. A whole
family may share a `prompt_cache_key`: Codex gives sub-agents that of their parent, and row 4 distinguishes them.

Sources: 1 https://github.com/anomalyco/opencode/pull/12932, 2
https://docs.nvidia.com/dynamo/dev/agents/session-i-ds, 3 https://code.claude.com/docs/en/llm-gateway-protocol and
https://github.com/anthropics/claude-code/issues/49205, 4 https://github.com/ai-dynamo/dynamo/pull/12331 (Codex:
threads of one run share its session-id), 5 https://github.com/vllm-project/router/pull/286, whose "program"
is called a session here, 6 https://platform.openai.com/docs/guides/prompt-caching: `prompt_cache_key` takes
the place of `user` for caching, and `safety_identifier` for distinguishing users.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from router.prompt.api.field_values import SHORT_BYTES, short_value, text_of
from router.prompt.api.fields import Part
from router.prompt.body_rewrite import UNREADABLE
from router.tenants.isolation import SEPARATOR, join_names

SESSION, PARENT = b"x-session-id", b"x-parent-session-id"
DYNAMO_SESSION, DYNAMO_PARENT = b"x-dynamo-session-id", b"x-dynamo-parent-session-id"
CLAUDE_SESSION, CLAUDE_AGENT = b"x-claude-code-session-id", b"x-claude-code-agent-id"
CLAUDE_PARENT = b"x-claude-code-parent-agent-id"
CODEX_SESSION, CODEX_THREAD, CODEX_PARENT = b"session-id", b"thread-id", b"x-codex-parent-thread-id"
SESSION_HEADERS = frozenset((SESSION, DYNAMO_SESSION, CLAUDE_SESSION, CODEX_SESSION, CODEX_THREAD))
"""Headers of which at least one is present if headers name a session."""

MAX_CHARACTERS = 512
"""Longest name, as clients choose names. A longer name is ignored."""


class Lineage(NamedTuple):
    """The names that a client gave. `parent` None: no other session started this one, or that is not known."""

    session: str
    parent: str | None
    program: str


def read_header_lineage(fields: Mapping[bytes, bytes]) -> Lineage | None:
    """Return the lineage in `fields` (names in lower case); None if they name no session."""
    if (name := _name(fields, SESSION)) is not None:
        return make_lineage(name, _name(fields, PARENT)) if PARENT in fields else Lineage(name, None, name)
    if (name := _name(fields, DYNAMO_SESSION)) is not None:
        return make_lineage(name, _name(fields, DYNAMO_PARENT))
    if (name := _name(fields, CLAUDE_SESSION)) is not None:
        if (agent := _name(fields, CLAUDE_AGENT)) is None:
            return make_lineage(name)
        above = _name(fields, CLAUDE_PARENT)
        return make_lineage(join_names(name, agent), name if above is None else join_names(name, above), name)
    run, thread = _name(fields, CODEX_SESSION), _name(fields, CODEX_THREAD)
    if (name := thread or run) is not None:
        return make_lineage(name, _name(fields, CODEX_PARENT), run)
    return None


def read_context_lineage(xargs: Part) -> Lineage | None:
    """Return the lineage in a body's `vllm_xargs`; None if there is none. `agentic_context` may be an object, or a
    text that contains one.
    """
    context = _member(short_value(xargs), "agentic_context")
    if isinstance(context, str) and len(context) <= SHORT_BYTES:
        try:
            context = msgspec.json.decode(context)
        except UNREADABLE:
            return None
    if (name := as_name(_member(context, "program_id"))) is None:
        return None
    program = as_name(_member(context, "task_id")) or as_name(_member(context, "root_program_id"))
    return make_lineage(name, as_name(_member(context, "parent_program_id")), program)


def make_lineage(session: str, parent: str | None = None, program: str | None = None) -> Lineage:
    """Return the lineage of a session whose parent and program may be unknown. No session is its own parent."""
    if parent == session:
        parent = None
    return Lineage(session, parent, program or parent or session)


def as_name(field: Any) -> str | None:
    """Return `field` if it is a name: a text that is neither empty nor longer than `MAX_CHARACTERS`, without
    `SEPARATOR`.
    """
    text = text_of(field)
    return text if text is not None and len(text) <= MAX_CHARACTERS and SEPARATOR not in text else None


def _name(fields: Mapping[bytes, bytes], header: bytes) -> str | None:
    raw = fields.get(header)
    return as_name(raw.decode("latin-1")) if raw and len(raw) <= MAX_CHARACTERS else None


def _member(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None
