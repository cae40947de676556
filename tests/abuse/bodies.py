"""Request bodies made to be expensive: each puts as many of one thing as fit into `size` bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

from tests.e2e.conftest import MODEL

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
EMBEDDINGS = "/v1/embeddings"
SMALL_CHAT = b'"messages":[{"role":"user","content":"x"}]'


class Body(NamedTuple):
    """A body and the path that it is sent to."""

    path: str
    raw: bytes


def fill(size: int, opening: bytes, unit: bytes, closing: bytes) -> bytes:
    """Return `opening`, `unit` repeated (it ends with a comma, of which the last is left out), `closing`."""
    return opening + (unit * ((size - len(opening) - len(closing)) // len(unit)))[:-1] + closing


def keys(size: int, quote: bytes = b'"') -> bytes:
    """Return members of an object, each with a name of its own."""
    member = quote + b"%08x" + quote + b":1"
    return b",".join([member % i for i in range(size // (len(member) + 5))])


def request(path: str, members: bytes) -> Body:
    return Body(path, b'{"model":"%b","max_tokens":1,%b}' % (MODEL.encode(), members))


def chat(members: bytes) -> Body:
    return request(CHAT, members)


def content(inner: bytes) -> Body:
    """A chat with one message of this content (JSON)."""
    return chat(b'"messages":[{"role":"user","content":' + inner + b"}]")


def user_messages(size: int) -> Body:
    return chat(fill(size, b'"messages":[', b'{"role":"user","content":""},', b"]"))


def tool_calls(size: int, arguments: bytes = b'""') -> Body:
    call = b'{"function":{"name":"f","arguments":' + arguments + b"}},"
    opening = b'"messages":[{"role":"user","content":"x"},{"role":"assistant","tool_calls":['
    return chat(fill(size, opening, call, b"]}]"))


def one_call(arguments: bytes) -> Body:
    return tool_calls(len(arguments) + 300, b'"' + arguments + b'"')


def deep(size: int) -> bytes:
    return b"[" * (size // 2) + b"]" * (size // 2)


def deep_objects(size: int) -> bytes:
    count = size // 6
    return b'{"a":' * count + b"1" + b"}" * count


def blocks(size: int, kind: bytes) -> Body:
    """A request to /v1/messages with one message of many blocks."""
    opening = b'"messages":[{"role":"user","content":['
    return request(MESSAGES, fill(size, opening, b'{"type":"%b"},' % kind, b"]}]"))


SHAPES: dict[str, Callable[[int], Body]] = {
    "members beside stream_options": lambda n: chat(
        b'"stream":true,"stream_options":{},' + SMALL_CHAT + b"," + keys(n)
    ),
    "members beside a field that is stripped": lambda n: chat(b'"vllm_xargs":1,' + SMALL_CHAT + b"," + keys(n)),
    "members of an embedding": lambda n: request(EMBEDDINGS, b'"input":"x",' + keys(n)),
    "members of stream_options": lambda n: chat(b'"stream":true,"stream_options":{' + keys(n) + b"}," + SMALL_CHAT),
    "members of metadata": lambda n: chat(b'"metadata":{' + keys(n) + b"}," + SMALL_CHAT),
    "members of template variables": lambda n: chat(b'"chat_template_kwargs":{' + keys(n) + b"}," + SMALL_CHAT),
    "members of a tool": lambda n: chat(
        b'"tools":[{"type":"function","function":{"name":"f","parameters":{' + keys(n) + b"}}}]," + SMALL_CHAT
    ),
    "tools": lambda n: chat(fill(n, SMALL_CHAT + b',"tools":[', b'{"function":{"name":""}},', b"]")),
    "messages": user_messages,
    "messages that are lists": lambda n: chat(fill(n, b'"messages":[', b"[],", b"]")),
    "parts that are strings": lambda n: content(fill(n, b"[", b'"",', b"]")),
    "parts that are objects": lambda n: content(fill(n, b"[", b'{"type":"text","text":""},', b"]")),
    "tool calls": tool_calls,
    "tool calls with arguments": lambda n: tool_calls(n, rb'"{\"a\":1}"'),
    "arguments: members": lambda n: one_call(b"{" + keys(n, b'\\"') + b"}"),
    "arguments: lists": lambda n: one_call(fill(n, rb"{\"a\":[", b"[],", b"]}")),
    "arguments: deep": lambda n: one_call(rb"{\"a\":" + deep(n) + b"}"),
    "numbers in metadata": lambda n: chat(fill(n, b'"metadata":[', b"1.5,", b"]," + SMALL_CHAT)),
    "token ids": lambda n: request(COMPLETIONS, fill(n, b'"prompt":[', b"7,", b"]")),
    "token ids and a word": lambda n: request(COMPLETIONS, fill(n, b'"prompt":[', b"700,", b',"x"]')),
    "lists of token ids": lambda n: request(COMPLETIONS, fill(n, b'"prompt":[', b"[7],", b"]")),
    "prompts": lambda n: request(COMPLETIONS, fill(n, b'"prompt":[', b'"",', b"]")),
    "deep lists": lambda n: chat(b'"messages":' + deep(n)),
    "deep objects": lambda n: chat(SMALL_CHAT + b',"metadata":' + deep_objects(n)),
    "one string": lambda n: content(b'"' + b"word " * (n // 5) + b'"'),
    "one string of escapes": lambda n: content(b'"' + rb"\u00e9" * (n // 6) + b'"'),
    "one string, wide": lambda n: content('"\U0001f600'.encode() + b"word " * (n // 5) + b'"'),
    "one string with half a character": lambda n: content(b'"' + b"word " * (n // 5) + rb'\ud83d"'),
    "a string of backslashes": lambda n: content(b'"' + b"\\" * (n // 2 * 2) + b'"'),
    "a prompt of one letter": lambda n: request(COMPLETIONS, b'"prompt":"' + b"a" * n + b'"'),
    "a number": lambda n: chat(b'"priority":' + b"1" * n + b"," + SMALL_CHAT),
    "a session's name": lambda n: chat(b'"user":"' + b"a" * n + b'",' + SMALL_CHAT),
    "a salt": lambda n: chat(b'"cache_salt":"' + b"a" * n + b'",' + SMALL_CHAT),
    "blocks": lambda n: blocks(n, b"text"),
    "tool results": lambda n: blocks(n, b"tool_result"),
    "inputs of tool uses": lambda n: request(
        MESSAGES,
        b'"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{'
        + keys(n)
        + b"}}]}]",
    ),
    "items of a response": lambda n: request(RESPONSES, fill(n, b'"input":[', b'{"role":"user","content":""},', b"]")),
    "calls of a response": lambda n: request(
        RESPONSES, fill(n, b'"input":[', b'{"type":"function_call","name":"","call_id":""},', b"]")
    ),
}


def text_chat(text: str, **fields: object) -> Body:
    return Body(CHAT, json.dumps({"model": MODEL, "messages": [{"role": "user", "content": text}], **fields}).encode())
