"""Identifies conversations without a session id: a digest of how they begin, which every turn sends again.

    chats, messages, responses   system prompt and all content up to the end of the first user message
    completions                  the first 2,048 characters, or the first 512 token ids

Conversations that begin alike share a digest, and a completion shorter than that changes it by growing: enough to keep
turns together, not to tell users apart. Differences between turns without meaning are ignored: cache breakpoints, one
text or a list with one text in it, and a billing line.

Reads the forwarded body, only its first part and only on demand: the prompt may never have been read otherwise
(`Prompt.source` may be unread). Malformed content is left to the engine to refuse. How much is read is bounded, as this
happens on the event loop: `MAX_MESSAGES`, `MAX_ITEM_BYTES`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Raw

from router.prompt.api.anthropic import BILLING
from router.prompt.prompt import Endpoint, Prompt

DIGEST_BYTES = 16
TEXT_CHARACTERS = 2048
IDS = 512
MAX_MESSAGES = 200  # up to the first of a user
MAX_ITEM_BYTES = 1024 * 1024  # of a longer message or prompt the first part stands for all of it, as it was sent
NOT_READABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Parts(msgspec.Struct):
    """Members that a body of the four endpoints may begin with."""

    messages: Raw = Raw(b"")
    system: Raw = Raw(b"")
    prompt: Raw = Raw(b"")
    input: Raw = Raw(b"")
    instructions: Raw = Raw(b"")
    previous_response_id: Any = None


_PARTS = msgspec.json.Decoder(_Parts)
_ITEMS: msgspec.json.Decoder[list[Raw]] = msgspec.json.Decoder(list[Raw])
_ID_LIST = re.compile(rb"\[\s*\d")


def conversation_digest(prompt: Prompt) -> bytes | None:
    """Return 16 bytes that stay the same on every turn of a conversation; `None` if it cannot be identified.

    That is so before the first user message, where the beginning is stored by the engine (`previous_response_id`), and
    at endpoints without conversations.
    """
    read = _READERS.get(prompt.endpoint)
    if read is None:
        return None
    try:
        pieces = read(_PARTS.decode(prompt.body))
    except NOT_READABLE:
        return None
    if pieces is None:
        return None
    digest = blake2b(digest_size=DIGEST_BYTES)
    for piece in pieces:
        digest.update(b"%d:" % len(piece))  # keeps different sequences of pieces from giving the same bytes
        digest.update(piece)
    return digest.digest()


def _responses(parts: _Parts) -> list[bytes] | None:
    if parts.previous_response_id is not None:
        return None
    if bytes(memoryview(parts.input)[:1]) == b'"':
        return [*_read_texts(parts.instructions), b"user", *_read_texts(parts.input)]
    return _to_first_user(parts.input, parts.instructions)


def _completion(parts: _Parts) -> list[bytes] | None:
    """Return the pieces of a completion; the first one of several prompts."""
    prompt = parts.prompt
    head = bytes(memoryview(prompt)[:64])
    if head.startswith(b"[") and not _ID_LIST.match(head):
        items = _ITEMS.decode(prompt) if len(memoryview(prompt)) <= MAX_ITEM_BYTES else None
        if not items:
            return None
        prompt, head = items[0], bytes(memoryview(items[0])[:64])
    if head.startswith(b'"'):
        text = _first_characters(prompt)
        return [b"text", text.encode()] if text else None
    return [b"ids", _first_ids(prompt)] if _ID_LIST.match(head) else None


def _first_characters(text: Raw) -> str:
    """Return the first characters of a JSON string, cut before parsing. A character has at most 12 bytes (two escapes),
    and may not be cut in two.
    """
    raw = bytes(memoryview(text)[: 1 + 12 * TEXT_CHARACTERS])
    if len(raw) < len(memoryview(text)):
        for end in range(len(raw), len(raw) - 12, -1):
            with suppress(*NOT_READABLE):
                return msgspec.json.decode(raw[:end] + b'"', type=str)[:TEXT_CHARACTERS]
    return msgspec.json.decode(raw, type=str)[:TEXT_CHARACTERS]


def _first_ids(ids: Raw) -> bytes:
    """Return the first ids as JSON, cut before parsing: 80,000 ids take two milliseconds. An id and its comma have at
    most 12 bytes; if more space between them makes that too short, more is read.
    """
    pieces = bytes(memoryview(ids)[1 : 1 + 12 * IDS]).split(b",", IDS)
    if len(pieces) <= IDS:
        pieces = _beginning(ids)[1:].rstrip(b"] \t\r\n").split(b",")
    return b",".join(piece.strip() for piece in pieces[:IDS])


def _to_first_user(items: Raw, system: Raw | None = None) -> list[bytes] | None:
    """Return roles and texts up to the first user message; `None` if there is none."""
    pieces = [] if system is None else list(_read_texts(system))
    for item in _ITEMS.decode(items)[:MAX_MESSAGES]:
        if len(memoryview(item)) > MAX_ITEM_BYTES:
            return [*pieces, _beginning(item)]
        message = msgspec.json.decode(item)
        if not isinstance(message, dict):
            return None
        role = message.get("role")
        pieces.append(str(role).encode())
        pieces += _texts(message.get("content"))
        if role == "user":
            return pieces
    return None


def _read_texts(system: Raw) -> Iterable[bytes]:
    if len(memoryview(system)) > MAX_ITEM_BYTES:
        return (_beginning(system),)
    return _texts(msgspec.json.decode(system)) if len(memoryview(system)) else ()


def _beginning(item: Raw) -> bytes:
    return bytes(memoryview(item)[:MAX_ITEM_BYTES])


def _texts(content: Any) -> Iterator[bytes]:
    """Yield the texts of a message's content, and its other parts as JSON."""
    for part in content if isinstance(content, list) else [content]:
        text = part.get("text") if isinstance(part, dict) else part
        if isinstance(text, str):
            if text.startswith(BILLING):
                text = text.partition("\n")[2]
            if text:
                yield text.encode()
        elif isinstance(part, dict):
            kept = {name: value for name, value in part.items() if name != "cache_control"}
            yield json.dumps(kept, sort_keys=True).encode()


_READERS: dict[Endpoint, Callable[[_Parts], list[bytes] | None]] = {
    Endpoint.CHAT: lambda parts: _to_first_user(parts.messages),
    Endpoint.COMPLETIONS: _completion,
    Endpoint.RESPONSES: _responses,
    Endpoint.MESSAGES: lambda parts: _to_first_user(parts.messages, parts.system),
}
