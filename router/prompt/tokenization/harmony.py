"""Renders chats for gpt-oss: in the harmony format, by the library that the engine renders with (oss-harmony).

vLLM renders these chats by code of its own and ignores the folder's chat template. The rules here follow vLLM 0.32
(renderers/online_renderer.py, entrypoints/openai/parser/harmony_utils.py, entrypoints/openai/responses/harmony.py):

    system       fixed text, the date, the reasoning effort
    developer    the first system or developer message, and the function tools; left out if there is neither
    ...          every other message; an assistant's reasoning, text and tool calls are one message each
    <|start|>assistant

A prompt is the concatenation of its messages' renderings, so one message is one segment of it. Reasoning that comes
before the last final answer is dropped: the next turn's prompt equals this one's up to the first message dropped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import msgspec
import openai_harmony
from openai_harmony import HarmonyEncodingName, Message, ReasoningEffort, RenderOptions, SystemContent

from router.prompt.prompt import Chat
from router.prompt.tokenization.chat_template import UnrenderableChat
from router.prompt.tokenization.message_renderer import SegmentedPrompt

EFFORTS: Final = {"low": ReasoningEffort.LOW, "medium": ReasoningEffort.MEDIUM, "high": ReasoningEffort.HIGH}
INSTRUCTIONS: Final = ("system", "developer")  # roles whose text is in developer messages
PLAIN: Final = RenderOptions(conversation_has_function_tools=False)
WITH_TOOLS: Final = RenderOptions(conversation_has_function_tools=True)
DAY_S: Final = 86_400.0
SYSTEM_TOKENS: Final = 48  # of which the date is one of the first 30
_DATE: Final = re.compile(r"Current date: (\d{4}-\d\d-\d\d)\n")
TOOLS_MARK: Final = b"+"  # begins the segment of a message that is rendered with `WITH_TOOLS`

Fields = dict[str, Any]
"""One harmony message as the library's `Message.from_dict` takes it."""


class StartDate:
    """The date that prompts begin with, as YYYY-MM-DD: `pinned`, or today's in UTC."""

    def __init__(self, pinned: str | None, wall: Callable[[], float]) -> None:
        self._pinned = pinned
        self._wall = wall

    def today(self) -> str:
        return self._pinned or datetime.fromtimestamp(self._wall(), UTC).strftime("%Y-%m-%d")

    def lasts_s(self) -> float | None:
        """Return the time until the date changes; None: never."""
        return None if self._pinned else DAY_S - self._wall() % DAY_S


class HarmonyRenderer:
    """Renders chats with one vocabulary."""

    def __init__(self, date: StartDate) -> None:
        self._date = date
        self._encoding = openai_harmony.load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
        self._start, self._channel, self._message = (
            self._special(token) for token in ("<|start|>", "<|channel|>", "<|message|>")
        )
        self._encode = partial(self._encoding.encode, disallowed_special=())  # text; the default takes 1 ms
        self._call = self._encode("commentary json")
        self._tail = [self._start, *self._encode("assistant")]

    def segment(self, chat: Chat) -> SegmentedPrompt:
        """Return the prompt, one segment per message. Raises UnrenderableChat for a chat that the engine refuses."""
        messages = _drop_reasoning(list(self._messages(chat)))
        mark = TOOLS_MARK if any("tools" in part for one in messages for part in one["content"]) else b""
        try:
            segments = [mark + msgspec.json.encode(message) for message in messages]
        except UnicodeEncodeError:
            raise UnrenderableChat("half of a surrogate pair") from None  # JSON can carry one, UTF-8 cannot
        return SegmentedPrompt([], segments, self._tail)

    def encode(self, segment: bytes) -> list[int]:
        """Return the ids of one segment that `segment` returned."""
        options = WITH_TOOLS if segment.startswith(TOOLS_MARK) else PLAIN
        fields = msgspec.json.decode(segment.removeprefix(TOOLS_MARK))
        ids: list[int] = self._encoding.render(Message.from_dict(fields), options)
        return self._call_header(fields["recipient"]) + ids[ids.index(self._message) :] if _is_call(fields) else ids

    def lasts_s(self) -> float | None:
        """See `MessageRenderer`."""
        return self._date.lasts_s()

    def find_date(self, ids: Sequence[int]) -> str | None:
        """See `MessageRenderer`."""
        found = _DATE.search(self._encoding.decode(ids[:SYSTEM_TOKENS]))
        return None if found is None else found[1]

    def _call_header(self, recipient: str) -> list[int]:
        """Return the header of a tool call in the form that the model was trained on: vLLM undoes what oss-harmony
        changed in 0.0.10.
        """
        return [self._start, *self._encode(f"assistant to={recipient}"), self._channel, *self._call]

    def _messages(self, chat: Chat) -> Iterator[Fields]:
        given = chat.given
        if given is None:
            raise UnrenderableChat("its messages are not known as the client sent them")
        yield self._system(given.effort)
        messages = given.messages if given.items is None else given.items
        instructions = None
        if messages and isinstance(messages[0], dict) and messages[0].get("role") in INSTRUCTIONS:
            instructions, messages = _text(messages[0].get("content")), messages[1:]
        if instructions or chat.tools:
            yield _developer(instructions, [_describe_tool(tool) for tool in chat.tools or ()])
        yield from _chat_messages(messages) if given.items is None else _response_items(messages)

    def _system(self, effort: str | None) -> Fields:
        content = SystemContent.new().with_conversation_start_date(self._date.today())
        if effort is not None:
            if effort not in EFFORTS:
                raise UnrenderableChat(f"reasoning_effort {effort!r}")
            content = content.with_reasoning_effort(EFFORTS[effort])
        return {"role": "system", "content": [content.to_dict()]}

    def _special(self, token: str) -> int:
        (id,) = self._encoding.encode(token, allowed_special={token})
        return int(id)


def _chat_messages(messages: Sequence[Any]) -> Iterator[Fields]:
    """Yield the messages of `/v1/chat/completions`, and of `/v1/messages` as the engine converts it."""
    names: dict[Any, str] = {}  # of tools, by the ids of their calls
    for message in messages:
        if not isinstance(message, dict):
            raise UnrenderableChat("a message is not an object")
        for call in message.get("tool_calls") or ():
            names[call.get("id")] = call.get("function", {}).get("name") or ""
    for message in messages:
        role, content = message.get("role"), message.get("content")
        if role == "assistant":
            yield from _assistant(message)
        elif role == "tool":
            yield _tool_result(names.get(message.get("tool_call_id"), ""), _text(content) or "")
        elif role in INSTRUCTIONS:
            if (text := _text(content)) is not None:
                yield _developer(text)
        elif role == "user":
            yield _plain(role, _parts(content))
        else:
            raise UnrenderableChat(f"role {role!r}")


def _assistant(message: dict[str, Any]) -> Iterator[Fields]:
    content, calls = message.get("content"), message.get("tool_calls")
    reasoning = message.get("reasoning") or message.get("reasoning_content")
    if calls and (text := _text(content)):
        yield _plain("assistant", [text], "commentary")
    if reasoning:
        yield _plain("assistant", [reasoning], "analysis")
    for call in calls or ():
        function = call.get("function", {})
        yield _call(function.get("name") or "", function.get("arguments") or "")
    if not calls and (parts := _parts(content))[0]:
        yield _plain("assistant", parts, "final")


def _response_items(items: Sequence[Any]) -> Iterator[Fields]:
    """Yield the input items of `/v1/responses`."""
    names: dict[Any, str] = {}
    for item in items:
        kind = item.get("type", "message") if isinstance(item, dict) else None
        if kind == "message":
            role, content = item.get("role"), item.get("content")
            if role in INSTRUCTIONS:
                if text := _text(content):
                    yield _developer(text)
            elif role in ("user", "assistant"):
                yield _plain(role, _parts(content), "final" if role == "assistant" else None)
            else:
                raise UnrenderableChat(f"role {role!r}")
        elif kind == "reasoning":
            if content := item.get("content"):
                yield _plain("assistant", ["\n".join(part["text"] for part in content)], "analysis")
        elif kind == "function_call":
            names[item.get("call_id")] = item["name"]
            yield _call(item["name"], item["arguments"])
        elif kind == "function_call_output" and item.get("call_id") in names and isinstance(item.get("output"), str):
            yield _tool_result(names[item["call_id"]], item["output"])
        else:
            raise UnrenderableChat(f"item of type {kind!r}")


def _developer(instructions: str | None, tools: Sequence[dict[str, Any]] = ()) -> Fields:
    content: dict[str, Any] = {"type": "developer_content"}
    if instructions is not None:
        content["instructions"] = instructions
    if tools:
        content["tools"] = {"functions": {"name": "functions", "tools": list(tools)}}
    return {"role": "developer", "content": [content]}


def _describe_tool(tool: dict[str, Any]) -> dict[str, Any]:
    function = tool["function"]
    described = {"name": function["name"], "description": function.get("description") or ""}
    return described | {"parameters": function.get("parameters")}


def _plain(role: str, texts: Sequence[str], channel: str | None = None) -> Fields:
    fields: Fields = {"role": role, "content": [{"type": "text", "text": text} for text in texts]}
    return fields if channel is None else fields | {"channel": channel}


def _call(name: str, arguments: Any) -> Fields:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return _plain("assistant", [text], "commentary") | {"recipient": f"functions.{name}", "content_type": "json"}


def _is_call(fields: Fields) -> bool:
    return fields.get("content_type") is not None


def _tool_result(name: str, text: str) -> Fields:
    return _plain("tool", [text], "commentary") | {"name": f"functions.{name}", "recipient": "assistant"}


def _parts(content: Any) -> list[str]:
    """Return the texts of a message's content; a part without text counts as an empty one."""
    if not content:
        return [""]
    if isinstance(content, str):
        return [content]
    if not all(isinstance(part, dict) for part in content):
        raise UnrenderableChat("a content part is not an object")
    return [part.get("text") or "" for part in content]


def _text(content: Any) -> str | None:
    """Return the texts of a message's content as one; None if there is none."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    found = [part.get("text") if isinstance(part, dict) else part for part in content]
    texts = [text for text in found if isinstance(text, str)]
    return "".join(texts) if texts else None


def _drop_reasoning(messages: list[Fields]) -> list[Fields]:
    """Return the messages without the reasoning before the last final answer."""
    last = max((n for n, one in enumerate(messages) if one.get("channel") == "final"), default=0)
    return [one for n, one in enumerate(messages) if n >= last or one.get("channel") != "analysis"]
