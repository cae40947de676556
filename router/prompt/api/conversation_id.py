"""Computes how far a conversation without a session id has come: digests of the content that every turn repeats.

    chats, messages, responses   one for each turn: the system prompt and all content up to its end
    completions                  one: of the first 2,048 characters, or the first 512 token ids

A turn ends where an answer follows, or with the last message; the first turn has a user's message. So the last
digest of a request is among those of the next request, unless the client changed its history.
`scheduling/conversations.py` joins such requests into one conversation.

Differences between turns without meaning are ignored: cache breakpoints, one text or a list with one text in it, a
billing line, and reasoning, which clients drop from earlier answers. Of an answer only the content counts, not its
tool calls, whose results follow.

Reads the forwarded body, and only on demand: the prompt may not have been read otherwise (`Prompt.source` may be
unread). Texts are hashed as JSON, and not decoded. Malformed content is left to the engine to refuse. The amount
read is bounded, as this runs on the event loop: `MAX_MESSAGES`, `MAX_BYTES`. Further turns count as the last one
that was read. The hash is a fast one: a client that makes two conversations collide gains no more than one that
gives both the same name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress

import msgspec
from msgspec import Raw
from xxhash import xxh3_128

from router.prompt.api.anthropic import BILLING
from router.prompt.body_rewrite import UNREADABLE
from router.prompt.prompt import Endpoint, Prompt

TEXT_CHARACTERS = 2048
IDS = 512
MAX_MESSAGES = 512
MAX_BYTES = 1024 * 1024  # limit of messages, of a system prompt and of a prompt; longer content counts up to there


class _Message(msgspec.Struct, gc=False):
    """Members of a message, or of an item of a response's input."""

    role: Raw = Raw(b"")
    type: Raw = Raw(b"")
    content: Raw = Raw(b"")
    output: Raw = Raw(b"")  # of a tool


class _ChatBody(msgspec.Struct, gc=False):
    """Members of a chat's body, read in one pass."""

    messages: list[_Message] = []
    system: Raw = Raw(b"")


class _ResponsesBody(msgspec.Struct, gc=False):
    """Members of a body of `/v1/responses`."""

    input: Raw = Raw(b"")
    instructions: Raw = Raw(b"")
    previous_response_id: Raw = Raw(b"null")


class _CompletionBody(msgspec.Struct, gc=False):
    """The only relevant member of a completion's body."""

    prompt: Raw = Raw(b"")


_CHAT = msgspec.json.Decoder(_ChatBody)
_RESPONSES = msgspec.json.Decoder(_ResponsesBody)
_COMPLETION = msgspec.json.Decoder(_CompletionBody)
_MESSAGES = msgspec.json.Decoder(list[_Message])
_ITEMS: msgspec.json.Decoder[list[Raw]] = msgspec.json.Decoder(list[Raw])
_MEMBERS: msgspec.json.Decoder[dict[str, Raw]] = msgspec.json.Decoder(dict[str, Raw])
_ID_LIST = re.compile(rb"\[\s*\d")
_USER, _ASSISTANT, _NULL, _REASONING = b'"user"', b'"assistant"', b"null", b'"reasoning"'
_THOUGHTS = (_REASONING, b'"thinking"', b'"redacted_thinking"')
_BILLING = b'"' + BILLING.encode()


def read_turns(prompt: Prompt) -> list[bytes]:
    """Return a digest (16 bytes) for each turn so far, the present one last; empty if the conversation cannot be
    identified.

    It cannot be identified before the first user message, if its beginning is stored by the engine
    (`previous_response_id`), or at endpoints without conversations.
    """
    read = _READERS.get(prompt.endpoint)
    if read is None:
        return []
    try:
        return read(prompt.body)
    except UNREADABLE:
        return []


def _chat(body: bytes) -> list[bytes]:
    return _read_messages(_CHAT.decode(body).messages, xxh3_128())


def _messages(body: bytes) -> list[bytes]:
    parts = _CHAT.decode(body)
    return _read_messages(parts.messages, _begin(parts.system))


def _responses(body: bytes) -> list[bytes]:
    parts = _RESPONSES.decode(body)
    if bytes(parts.previous_response_id) != _NULL:
        return []
    digest = _begin(parts.instructions)
    if _raw(parts.input, 1) == b'"':
        return _read_messages([_Message(Raw(_USER), content=parts.input)], digest)
    return _read_messages(_MESSAGES.decode(parts.input), digest)


def _begin(system: Raw) -> xxh3_128:
    """Return the hash of a system prompt."""
    digest = xxh3_128()
    if len(memoryview(system)) > MAX_BYTES:
        _add(digest, _raw(system, MAX_BYTES))
    else:
        _add_content(digest, bytes(system))
    return digest


def _read_messages(messages: list[_Message], digest: xxh3_128) -> list[bytes]:
    """Add messages to a hash, and return its digest at the end of each turn."""
    ends: list[bytes] = []
    begun = has_user = False  # `begun`: the client's side has added something since the last answer
    left = MAX_BYTES
    for message in messages[:MAX_MESSAGES]:
        role, kind, content = bytes(message.role), bytes(message.type), message.content
        if kind == _REASONING:
            continue
        if role == _ASSISTANT or (not role and not kind.endswith(b'_output"')):
            if begun and has_user:
                ends.append(digest.digest())
            begun = False
        else:
            begun = True
            has_user = has_user or role == _USER
            if not role:
                content = message.output
        _add(digest, role or kind)
        if (size := len(memoryview(content))) > left:
            _add(digest, _raw(content, left))
            return [*ends, digest.digest()]
        left -= size
        _add_content(digest, bytes(content))
    if begun and has_user:
        ends.append(digest.digest())
    return ends


def _add(digest: xxh3_128, piece: bytes) -> None:
    """Add a piece, preceded by its length, so that different sequences of pieces have different bytes."""
    digest.update(b"%d:" % len(piece))
    digest.update(piece)


def _add_content(digest: xxh3_128, content: bytes) -> None:
    """Add the texts of a message's content, and its other parts except thoughts."""
    if content.startswith(b'"'):
        _add_text(digest, content)
    elif content.startswith(b"["):
        for part in _ITEMS.decode(content):
            _add_part(digest, bytes(part))
    else:
        _add_part(digest, content)


def _add_part(digest: xxh3_128, part: bytes) -> None:
    if part.startswith(b'"'):
        _add_text(digest, part)
    elif part.startswith(b"{"):
        members = _MEMBERS.decode(part)
        text = bytes(members.get("text", b""))
        if text.startswith(b'"'):
            _add_text(digest, text)
        elif bytes(members.get("type", b"")) not in _THOUGHTS:
            for name in sorted(members.keys() - {"cache_control"}):
                _add(digest, name.encode())
                _add(digest, bytes(members[name]))


def _add_text(digest: xxh3_128, text: bytes) -> None:
    """Add a text that is JSON."""
    if text.startswith(_BILLING):
        text = msgspec.json.encode(msgspec.json.decode(text, type=str).partition("\n")[2])
    if text != b'""':
        _add(digest, text)


def _completion(body: bytes) -> list[bytes]:
    """Return the digest of a completion's prompt, or of the first of several prompts."""
    prompt = _COMPLETION.decode(body).prompt
    head = _raw(prompt, 64)
    if head.startswith(b"[") and not _ID_LIST.match(head):
        items = _ITEMS.decode(prompt) if len(memoryview(prompt)) <= MAX_BYTES else None
        if not items:
            return []
        prompt, head = items[0], _raw(items[0], 64)
    if head.startswith(b'"'):
        kind, content = b"text", _first_characters(prompt).encode()
    else:
        kind, content = b"ids", _first_ids(prompt) if _ID_LIST.match(head) else b""
    return [xxh3_128(kind + b":" + content).digest()] if content else []


def _first_characters(text: Raw) -> str:
    """Return the first characters of a JSON string, cut before parsing. A character has at most 12 bytes (two
    escapes), and may not be cut in two.
    """
    raw = _raw(text, 1 + 12 * TEXT_CHARACTERS)
    if len(raw) < len(memoryview(text)):
        for end in range(len(raw), len(raw) - 12, -1):
            with suppress(*UNREADABLE):
                return msgspec.json.decode(raw[:end] + b'"', type=str)[:TEXT_CHARACTERS]
    return msgspec.json.decode(raw, type=str)[:TEXT_CHARACTERS]


def _first_ids(ids: Raw) -> bytes:
    """Return the first ids as JSON, cut before parsing: 80,000 ids take two milliseconds. An id and its comma have
    at most 12 bytes; if extra white space makes the cut too short, more is read.
    """
    pieces = _raw(ids, 1 + 12 * IDS)[1:].split(b",", IDS)
    if len(pieces) <= IDS:
        pieces = _raw(ids, MAX_BYTES)[1:].rstrip(b"] \t\r\n").split(b",")
    return b",".join(piece.strip() for piece in pieces[:IDS])


def _raw(part: Raw, limit: int) -> bytes:
    """Return the first bytes of a part of the body."""
    return bytes(memoryview(part)[:limit])


_READERS: dict[Endpoint, Callable[[bytes], list[bytes]]] = {
    Endpoint.CHAT: _chat,
    Endpoint.COMPLETIONS: _completion,
    Endpoint.RESPONSES: _responses,
    Endpoint.MESSAGES: _messages,
}
