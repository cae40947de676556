"""Bodies that are nearly right: one field of a valid request holds what JSON, Unicode or the field's type forbids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from router.prompt.api.anthropic import MessagesFields
from router.prompt.api.continuable import CHECKED_FIELDS, PLAIN_FIELDS
from router.prompt.api.fields import BodyFields
from router.prompt.api.openai import ChatFields, CompletionFields
from router.prompt.api.responses import ResponsesFields

USER = b'[{"role":"user","content":"hi"}]'
VALID: dict[str, dict[bytes, bytes]] = {
    "/v1/chat/completions": {b"model": b'"m"', b"messages": USER, b"stream": b"true"},
    "/v1/completions": {b"model": b'"m"', b"prompt": b'"hi"', b"stream": b"true"},
    "/v1/responses": {b"model": b'"m"', b"input": b'"hi"', b"stream": b"true"},
    "/v1/messages": {b"model": b'"m"', b"messages": USER, b"max_tokens": b"1", b"stream": b"true"},
    "/v1/embeddings": {b"model": b'"m"', b"input": b'"hi"'},
}
_TYPES: dict[str, type[BodyFields]] = {
    "/v1/chat/completions": ChatFields,
    "/v1/completions": CompletionFields,
    "/v1/responses": ResponsesFields,
    "/v1/messages": MessagesFields,
    "/v1/embeddings": BodyFields,
}
_PIECES = (
    # every kind of value
    *(b"null", b"true", b"false", b"0", b"1", b"-1", b"1.5", b'""', b'"a"', b"[]", b"{}", b"[null]", b"[[]]", b"[{}]"),
    *(b'[1,"a",null,[],{}]', b'{"a":1,"a":2}', b"[99999999999999999999999]"),
    # numbers that are none, or too large for most readers
    *(b"NaN", b"Infinity", b"-Infinity", b"1e999", b"[1e999]", b"9" * 400, b"1" * 5000, b"0." + b"1" * 500),
    *(b"01", b"+1", b".5", b"1.", b"-", b"1e"),
    # broken syntax
    *(b"", b"{", b"[", b'"', b'"\\', b'"\\u', b'"\\x"', b"tru", b"[1,]", b'{"a":1,}', b'{"a"}', b"{a:1}", b"'a'"),
    *(b"[1 2]", b'"a"}{', b'"a"]', b'"a" x', b"/**/1", b'"\x00"', b'"\n"', b"\xef\xbb\xbf1", b"\x00"),
    # halves of surrogate pairs, and bytes that are no UTF-8
    *(b'"\\ud83d"', b'"\\ude00"', b'"\\ude00\\ud83d"', b'"\\ud83d', b'"\xed\xa0\xbd"', b'"\xff"', b'"\x80"', b'"\xc3"'),
    *(b'["\\ud83d"]', b'["\xed\xa0\xbd"]', b'{"\\ud83d":1}', b'{"\xed\xa0\xbd":"\xed\xa0\xbd"}', b'{"\xff":1}'),
    b'"' + "hi".encode("utf-16") + b'"',
    # depth
    *(b"[" * 1000 + b"]" * 1000, b"[" * 100_000 + b"]" * 100_000, b"[" * 100_000),
    *(b'{"a":' * 1000 + b"1" + b"}" * 1000, b'[{"content":' * 1000),
    # options, lineage and tools
    *(b'{"include_usage":[}', b'{"include_usage":NaN}', b'{"include_usage":"\xff"}', b'{"include_usage":"\\ud83d"}'),
    *(b'{"user_id":"\xed\xa0\xbd"}', b'{"user_id":{}}', b'{"agentic_context":"{\\"program_id\\":"}'),
    *(b'{"agentic_context":"\xff"}', b'{"agentic_context":{"program_id":"\xed\xa0\xbd"}}'),
    *(b'{"effort":"\xed\xa0\xbd"}', b'{"effort":{}}', b'{"type":[]}', b'[{"type":[],"role":{}}]'),
    b'[{"type":"function"}]',
    *(b'[{"name":"a","input_schema":{"\xed\xa0\xbd":1}}]', b'[{"type":"function","function":{"name":"\xed\xa0\xbd"}}]'),
    b'[{"type":"namespace","name":[],"tools":[{"type":"function"}]}]',
    # messages and items
    *(b'[{"role":"user","content":"\xed\xa0\xbd"}]', b'[{"role":"\xed\xa0\xbd","content":"x"}]'),
    *(b'[{"role":"user","content":{}}]', b'[{"role":"user","content":[[]]}]'),
    b'[{"role":"user","content":["\xed\xa0\xbd"]}]',
    b'[{"role":"user","content":[{"type":"text","text":"\xed\xa0\xbd"}]}]',
    b'[{"role":"user","content":[{"type":"tool_result","content":[{"type":"image","source":[]}]}]}]',
    b'[{"role":"assistant","content":[{"type":"tool_use","id":1,"name":[],"input":[]}]}]',
    b'[{"role":"assistant","tool_calls":[{"type":"function","function":{"name":1,"arguments":"{\\"a\\":"}}]}]',
    b'[{"role":"assistant","content":[{"text":"\xed\xa0\xbd"}],"status":"in_progress"}]',
    b'[{"type":"custom_tool_call","name":"a","call_id":"a","input":"\xed\xa0\xbd"}]',
    b'[{"type":"function_call","name":"a","call_id":"b","arguments":"\xed\xa0\xbd","namespace":[]}]',
    b'[{"type":"reasoning","content":[[]],"summary":{}}]',
)  # fmt: skip

PIECES = tuple(dict.fromkeys(_PIECES))
"""What a field may hold instead of its value, as bytes."""

WHOLE = (
    *(b"", b" ", b"{", b"}", b"[]", b"null", b"1", b'"x"', b"{}", b"{}{}", b"not json", b"\xff"),
    *(b"\x00", b"\x1f\x8b\x08", b'{"model":"m",}', b'{"model":"m"', b'{"model"}'),
    *(b'{"\\ud83d":1}', b'{"\xff":1}', b'\xef\xbb\xbf{"model":"m"}'),
    *('{"model":"m"}'.encode(coding) for coding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32")),
    *(b"[" * 1000, b"[" * 100_000, b'{"a":' * 1000, b'{"a":' * 100_000, b'"' + b"\\" * 100_001),
    b"{" + b",".join(b'"f%d":1' % n for n in range(2000)) + b"}",
)  # fmt: skip
"""Whole bodies that are no request."""


def field_names(path: str) -> list[bytes]:
    """Return every field that is read somewhere of a body for `path`, and one that nobody knows."""
    read = {field.encode_name for field in msgspec.structs.fields(_TYPES[path])}
    others = {"unknown", "kv_transfer_params", "guided_json", *CHECKED_FIELDS, *PLAIN_FIELDS}
    return [*VALID[path], *sorted(name.encode() for name in read | others if name.encode() not in VALID[path])]


def render(members: Mapping[bytes, bytes]) -> bytes:
    """Return a body with these members, valid or not."""
    return b"{%b}" % b",".join(b'"%b":%b' % member for member in members.items())


def hostile_bodies(path: str) -> Iterator[bytes]:
    """Yield bodies for `path`: what is no request at all, and each field with each of `PIECES`, once and twice."""
    valid = VALID[path]
    yield from WHOLE
    for name in field_names(path):
        for piece in PIECES:
            yield render(valid | {name: piece})
        yield b'{"%b":null,%b' % (name, render(valid)[1:])
        yield b'{"%b":"\\ud83d",%b' % (name, render(valid)[1:])
