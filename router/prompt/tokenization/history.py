"""Finds where a chat's prompt stops repeating the prompt of the turn before, though the client sent the same messages.

Some models render earlier turns otherwise than before: they drop reasoning once it has led to an answer, or move the
tools to the last message. The engine then re-uses its cache up to there only, wherever the request is sent.

The turn before is the chat up to its last answer. It is rendered again, and counts only if this router has tokenised
it: else the client may have changed its history, or the turn before went elsewhere. The cause is the part of the turn
before without which both prompts agree further.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from router.kvcache.tokenized_prompt import Cause, PrefixEnd
from router.prompt.common_prefix import common_length
from router.prompt.prompt import Chat
from router.prompt.tokenization.chat_template import UnrenderableChat
from router.prompt.tokenization.local_tokenizer import LocalTokenizer
from router.prompt.tokenization.message_renderer import SegmentedPrompt
from router.prompt.tokenization.prefix_cache import CachedSegment

REASONING: Final = ("reasoning", "reasoning_content")  # members of an answer
NOT_THINKING: Final = {"thinking": False, "enable_thinking": False}  # template variables
MODEL_ITEMS: Final = ("reasoning", "function_call")  # types of items of `/v1/responses` that a model generates


class Rendered(NamedTuple):
    """A chat as rendered, and those of its first segments that the prefix cache has."""

    chat: Chat
    prompt: SegmentedPrompt
    cached: list[CachedSegment]


def find_turn_before(chat: Chat) -> Chat | None:
    """Return the chat up to its last answer; None if nothing follows an answer."""
    answers = [message["role"] == "assistant" for message in chat.messages]
    cut = _last_run(answers)
    if cut is None:
        return None
    given = chat.given
    if given is not None:
        items = None if given.items is None else given.items[: _last_run(list(map(_is_generated, given.items)))]
        given = given._replace(messages=given.messages[:cut], items=items)
    return chat._replace(messages=chat.messages[:cut], given=given, read=None)


def measure_added(chat: Chat, turn: Chat) -> int:
    """Return about how many bytes of text, besides reasoning, the client has added to the turn before."""
    try:
        return len(msgspec.json.encode(_drop_reasoning(chat.messages[len(turn.messages) :])))
    except UnicodeEncodeError:  # half of a surrogate pair
        return 0


def find_prefix_end(
    local: LocalTokenizer, chat: Chat, ids: array[int], before: Rendered, block_tokens: int
) -> PrefixEnd | None:
    """Return where the prompt of `chat`, with these `ids`, stops repeating that of the turn `before`; None if it
    repeats all but less than a block, or this router does not know that turn.
    """
    if len(before.cached) < len(before.prompt.segments):
        return None
    old = array("I", before.prompt.head)
    for segment in before.cached:
        old.extend(segment.ids)
    tokens = common_length(ids, old)
    old.extend(before.prompt.tail)
    if len(old) - tokens < block_tokens:
        return None
    return PrefixEnd(tokens, len(old), _find_cause(local, chat, before))


def _find_cause(local: LocalTokenizer, chat: Chat, before: Rendered) -> Cause:
    now = b"".join(local.segment(chat).segments)
    reached = common_length(now, b"".join(before.prompt.segments))
    for cause, without in _variants(before.chat):
        try:
            text = b"".join(local.segment(without).segments)
        except UnrenderableChat:
            continue
        if common_length(now, text) > reached:
            return cause
    return "template"


def _variants(chat: Chat) -> Iterator[tuple[Cause, Chat]]:
    """Yield the chat without each part that may be the cause."""
    given = chat.given
    if given is not None:
        items = None if given.items is None else [item for item in given.items if _kind(item) != "reasoning"]
        given = given._replace(messages=_drop_reasoning(given.messages), items=items)
    without = chat._replace(messages=_drop_reasoning(chat.messages), given=given)
    yield "reasoning", without
    yield "reasoning", without._replace(template_kwargs=chat.template_kwargs | NOT_THINKING)
    if chat.tools is not None:
        yield "tools", chat._replace(tools=None)


def _drop_reasoning(messages: Sequence[Any]) -> list[Any]:
    return [{name: field for name, field in one.items() if name not in REASONING} for one in messages]


def _last_run(generated: Sequence[bool]) -> int | None:
    """Return where the last run of true values begins; None if there is none, or nothing follows it."""
    end = len(generated)
    while end and not generated[end - 1]:
        end -= 1
    if end in (0, len(generated)):
        return None
    begin = end - 1
    while begin and generated[begin - 1]:
        begin -= 1
    return begin


def _is_generated(item: Any) -> bool:
    kind = _kind(item)
    return kind in MODEL_ITEMS or (kind == "message" and item.get("role") == "assistant")


def _kind(item: Any) -> Any:
    return item.get("type", "message") if isinstance(item, dict) else None
