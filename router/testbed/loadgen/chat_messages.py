"""A session's turns as chats of real text: what the next request says, given what was said and answered before.

The conversation keeps its shape (system, user, assistant, user ...), and answers stand in it as they were really given:
that is what an engine has cached. Where a turn keeps less than all of the context, the rest is rendered anew: the
message in which the kept part ends goes on with fresh words, those after it stand as they were, and behind the change
none of them is what the engine cached. A turn that keeps nothing begins a new conversation.

Positions are the workload's: a message counts as many tokens as were asked for, whatever the model made of it. So sizes
drift from the plan, by the template's own tokens and by answers' lengths as text; the report tells by how much.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from router.testbed.loadgen.text import TextGenerator
from router.testbed.workloads import Span, Turn


class ChatMessage(NamedTuple):
    role: Literal["system", "user", "assistant"]
    text: str
    tokens: int  # as the workload counts


def next_messages(context: Sequence[ChatMessage], turn: Turn, texts: TextGenerator) -> list[ChatMessage]:
    """The messages of the turn's request. `context`: those of the request before it, and the answer to that."""
    if turn.kept_tokens == 0:
        return _opening(turn.fresh, texts)
    fresh, tokens = texts.of(turn.fresh), sum(span.tokens for span in turn.fresh)
    at, inside = _end_of(context, turn.kept_tokens)
    messages = list(context[:at])
    behind = sum(message.tokens for message in context[at:]) - inside  # of the context, and not kept
    if at == len(context):
        return _and_user(messages, fresh, tokens)
    changed = context[at]
    if tokens <= behind:  # it stands for less than was there: the conversation is cut back
        messages += [_cut(changed, inside)] if inside else []
        return _and_user(messages, fresh, tokens)
    anew = texts.count(changed.tokens - inside)
    text = _cut(changed, inside).text + "".join(fresh[:anew])
    messages += [ChatMessage(changed.role, text, changed.tokens), *context[at + 1 :]]
    more = max(1, texts.count(tokens - behind))
    return _and_user(messages, fresh[anew : anew + more], tokens - behind)


def _opening(spans: Sequence[Span], texts: TextGenerator) -> list[ChatMessage]:
    """Of several spans the first one is the system prompt: it is what sessions have in common."""
    system = [ChatMessage("system", "".join(texts.words(span)), span.tokens) for span in spans[: len(spans) > 1]]
    own = spans[len(system) :]
    return [*system, ChatMessage("user", "".join(texts.of(own)), sum(span.tokens for span in own))]


def _end_of(context: Sequence[ChatMessage], kept: int) -> tuple[int, int]:
    """The number of the message in which the first `kept` tokens end, and how many of its own are among them."""
    for number, message in enumerate(context):
        if kept < message.tokens:
            return number, kept
        kept -= message.tokens
    return len(context), 0


def _cut(message: ChatMessage, tokens: int) -> ChatMessage:
    """Its beginning, at a word's end."""
    words = message.text.split(" ")
    return ChatMessage(message.role, " ".join(words[: round(len(words) * tokens / message.tokens)]), tokens)


def _and_user(messages: list[ChatMessage], words: Sequence[str], tokens: int) -> list[ChatMessage]:
    """Two messages of one role in a row become one: some templates take no others."""
    text = "".join(words)
    if messages and messages[-1].role == "user":
        last = messages.pop()
        text, tokens = last.text + text, last.tokens + tokens
    return [*messages, ChatMessage("user", text, tokens)]
