"""A name for a conversation that its client did not name: a digest of how it opens, which every turn sends again.

    chats, messages, responses   system prompt and all that is said up to the end of the first user message
    completions                  the first 2,048 characters, or the first 512 token ids

Conversations that open alike share a name, and a completion shorter than that changes it by growing: good enough to
keep together what belongs together, not to tell people apart. What clients change between turns without meaning
anything by it does not count: cache breakpoints, one text or a list with one text in it, and a billing line.

Read from the forwarded body, only its beginning and only when asked: the prompt may never have been read otherwise
(`ReadOptions.want_source`), and what makes no sense is the engine's to refuse.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Raw

from router.prompt.api.anthropic import BILLING
from router.prompt.prompt import Endpoint, Prompt

DIGEST_BYTES = 16
TEXT_CHARACTERS = 2048
IDS = 512
NOT_READABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Parts(msgspec.Struct):
    """All that the four endpoints may open with."""

    messages: Raw = Raw(b"")
    system: Raw = Raw(b"")
    prompt: Raw = Raw(b"")
    input: Raw = Raw(b"")
    instructions: Raw = Raw(b"")
    previous_response_id: Any = None


_PARTS = msgspec.json.Decoder(_Parts)
_ITEMS: msgspec.json.Decoder[list[Raw]] = msgspec.json.Decoder(list[Raw])
_ID_LIST = re.compile(rb"\[\s*\d")


def opening(prompt: Prompt) -> bytes | None:
    """16 bytes that stay the same on every turn of a conversation; None: nothing to tell it by.

    That is so where nobody has spoken yet, where the beginning lies with the engine (`previous_response_id`), and at
    endpoints that hold no conversation.
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
        digest.update(b"%d:" % len(piece))  # so that no two rows of pieces run into the same bytes
        digest.update(piece)
    return digest.digest()


def _chat(parts: _Parts) -> list[bytes] | None:
    return _to_first_user(parts.messages)


def _anthropic(parts: _Parts) -> list[bytes] | None:
    return _to_first_user(parts.messages, parts.system)


def _responses(parts: _Parts) -> list[bytes] | None:
    if parts.previous_response_id is not None:
        return None
    if bytes(memoryview(parts.input)[:1]) == b'"':
        return [*_system(parts.instructions), b"user", *_said(msgspec.json.decode(parts.input))]
    return _to_first_user(parts.input, parts.instructions)


def _completion(parts: _Parts) -> list[bytes] | None:
    """Of several prompts, the first."""
    prompt = parts.prompt
    head = bytes(memoryview(prompt)[:64])
    if head.startswith(b"[") and not _ID_LIST.match(head):
        items = _ITEMS.decode(prompt)
        if not items:
            return None
        prompt, head = items[0], bytes(memoryview(items[0])[:64])
    if head.startswith(b'"'):
        text: str = msgspec.json.decode(prompt, type=str)[:TEXT_CHARACTERS]
        return [b"text", text.encode()] if text else None
    return [b"ids", _first_ids(prompt)] if _ID_LIST.match(head) else None


def _first_ids(ids: Raw) -> bytes:
    """Cut before it is parsed: 80,000 ids take two milliseconds. An id and its comma have at most 12 bytes, as a rule;
    where there is so much space between them that this does not reach, all are read.
    """
    pieces = bytes(memoryview(ids)[1 : 1 + 12 * IDS]).split(b",", IDS)
    if len(pieces) <= IDS:
        pieces = bytes(ids)[1:].rstrip(b"] \t\r\n").split(b",")
    return b",".join(piece.strip() for piece in pieces[:IDS])


def _to_first_user(items: Raw, system: Raw | None = None) -> list[bytes] | None:
    """Who said what, up to the first user; None: there is none."""
    pieces = [] if system is None else list(_system(system))
    for item in _ITEMS.decode(items):
        message = msgspec.json.decode(item)
        if not isinstance(message, dict):
            return None
        role = message.get("role")
        pieces.append(str(role).encode())
        pieces += _said(message.get("content"))
        if role == "user":
            return pieces
    return None


def _system(system: Raw) -> Iterable[bytes]:
    return _said(msgspec.json.decode(system)) if len(memoryview(system)) else ()


def _said(content: Any) -> Iterator[bytes]:
    """The texts of a message's content, and what else is in it as JSON."""
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
    Endpoint.CHAT: _chat,
    Endpoint.COMPLETIONS: _completion,
    Endpoint.RESPONSES: _responses,
    Endpoint.MESSAGES: _anthropic,
}
