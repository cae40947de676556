"""The byte patterns for reading the events of a streamed chat or completion without decoding their JSON.

A quote inside a JSON string is escaped, so `"token_ids":[` in the bytes is always a key. Pure.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

DONE = b"data: [DONE]\n\n"
EVENT_END: Final = b"\n\n"  # as engines end events; inside an event's JSON it is escaped
CHOICES = b'"choices":'
PROMPT_IDS, NULL_PROMPT_IDS = b'"prompt_token_ids":[', b'"prompt_token_ids":null'
IDS, NULL_IDS = b'"token_ids":[', b'"token_ids":null'
CALLS = b'"tool_calls":[{'
ROLE = b'"role":"assistant"'
REASONING = re.compile(rb'"reasoning(?:_content)?":"')
UNFINISHED = b'"finish_reason":null'
FINISH = re.compile(rb'"finish_reason":"([a-z_]+)"')
TEXT = re.compile(rb'(?:[^"\\]|\\.)*+')  # of a JSON string, up to its closing quote


class PlainLayout(NamedTuple):
    """The parts that all events of plain text have in common: everything but the text and the ids."""

    before: bytes  # up to the text
    between: bytes  # from the quote that ends the text to the ids; no text has these bytes, as its quotes are escaped
    after: bytes  # from the end of the ids
    after_null: bytes  # the same where ids are hidden, from the key of the ids
    start: int  # length of `before`
    skip: int  # of `between`
    end: int  # of `after`, negative


def find_layout(before: bytes, after: bytes, plain: bytes) -> PlainLayout | None:
    """Return the layout of an event with ids between `before` and `after`; None if the event adds more than plain
    text or ends the answer. `plain`: the bytes in front of the text.
    """
    start, end = before.find(plain) + len(plain), after.find(b"]")
    text = TEXT.match(before, start)
    if start < len(plain) or text is None or end < 0 or UNFINISHED not in before[text.end() :]:
        return None
    head, between, tail = before[:start], before[text.end() :] + IDS, after[end:]
    return PlainLayout(head, between, tail, NULL_IDS + tail[1:], len(head), len(between), -len(tail))
