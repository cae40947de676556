"""Renders chats for DeepSeek V3.2, V4 and V4.1, whose chats vLLM renders by code: the folder has no chat template.

The rules and the fixed texts are the models' (`encoding/` in their repositories), applied as vLLM 0.32 does
(tokenizers/deepseek_v32.py, deepseek_v4.py, deepseek_v41.py and their `_encoding.py`). The prompt is text, in which
the spellings of special tokens are these tokens. What one turn changes in an earlier part of the prompt:

    V3.2    thinking: the last user message ends in <think>, earlier ones in </think>; reasoning before it is dropped
    V4      thinking without tools: the same; with tools nothing changes
    V4.1    the same as V4
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from router.prompt.prompt import Chat
from router.prompt.tokenization.chat_template import UnrenderableChat, flatten
from router.prompt.tokenization.deepseek_texts import EFFORTS_V4, TOOLS_V4, TOOLS_V32

Message = dict[str, Any]

BOS: Final = "<\uff5cbegin\u2581of\u2581sentence\uff5c>"
EOS: Final = "<\uff5cend\u2581of\u2581sentence\uff5c>"
USER: Final = "<\uff5cUser\uff5c>"
ASSISTANT: Final = "<\uff5cAssistant\uff5c>"
SYSTEM: Final = "<\uff5cSystem\uff5c>"
REMINDER: Final = "<\uff5clatest_reminder\uff5c>"
DSML: Final = "\uff5cDSML\uff5c"
THINK, THOUGHT = "<think>", "</think>"
TASKS: Final = ("action", "query", "authority", "domain", "title", "read_url")

EFFORTS_V41: Final = {"low": 50, "high": 75, "xhigh": 75, "max": 100}


class Tags(NamedTuple):
    """The names of the elements that tool calls are written in."""

    calls: str
    invoke: str
    parameter: str

    def write(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """Return the block of these calls, each with its name and arguments."""
        blocks = [
            "\n".join([f'<{DSML}{self.invoke} name="{name}">', *self._arguments(arguments), f"</{DSML}{self.invoke}>"])
            for name, arguments in calls
        ]
        return "\n".join([f"<{DSML}{self.calls}>", *blocks, f"</{DSML}{self.calls}>"])

    def _arguments(self, arguments: Mapping[str, Any]) -> list[str]:
        element = self.parameter
        lines = [
            f'<{DSML}{element} name="{name}" string="{"true" if isinstance(value, str) else "false"}">'
            f"{value if isinstance(value, str) else _json(value)}</{DSML}{element}>"
            for name, value in arguments.items()
        ]
        return lines or [""]


TAGS_V32: Final = Tags("function_calls", "invoke", "parameter")
TAGS_V4: Final = Tags("tool_calls", "invoke", "parameter")
TAGS_V41: Final = Tags(" calls", " invoke", " parameter")


class DeepseekV32:
    """Renders chats for DeepSeek V3.2."""

    reads_given = False

    def render_chunks(self, chat: Chat, variables: dict[str, Any]) -> list[str]:
        """Return the prompt, one chunk per message. Raises UnrenderableChat."""
        if chat.has_media:
            raise UnrenderableChat("media")
        values = variables | chat.template_kwargs
        thinking = bool(values.get("thinking") or values.get("enable_thinking"))
        messages = [flatten(message, "string") for message in chat.messages]
        if not messages:
            raise UnrenderableChat("no messages")
        drops = thinking and messages[-1]["role"] == "user"
        if chat.tools:
            messages.insert(0, {"role": "system", "content": "", "tools": chat.tools})
        last = _last(messages, ("user", "developer"))
        if drops:
            if any(message["role"] == "developer" for message in messages[:last]):
                raise UnrenderableChat("a developer message before the last user message")  # as the engine, by a fault
            messages = _drop_reasoning(messages, last)
        return [BOS, *(self._render(messages, n, last, thinking) for n in range(len(messages)))]

    def _render(self, messages: list[Message], n: int, last: int, thinking: bool) -> str:
        message = messages[n]
        role, content = message["role"], message.get("content") or ""
        if role == "system":
            return content + _tools(TOOLS_V32, message.get("tools"))
        if role in ("user", "developer"):
            if role == "developer":
                if not content:
                    raise UnrenderableChat("an empty developer message")
                content = f"{_tools(TOOLS_V32, message.get('tools'))}\n\n# The user's message is: {content}"
            return f"{USER}{content}{ASSISTANT}{THINK if thinking and n == last else THOUGHT}"
        if role == "tool":
            return self._render_result(messages, n, content, THINK if thinking and n >= last else THOUGHT)
        if role != "assistant":
            raise UnrenderableChat(f"role {role!r}")
        calls, thoughts = message.get("tool_calls"), ""
        if thinking and n > last:
            if not (message.get("reasoning") or calls):
                raise UnrenderableChat("an answer without reasoning after the last user message")
            thoughts = (message.get("reasoning") or "") + THOUGHT
        written = "\n\n" + TAGS_V32.write(list(_calls(calls))) if calls else ""
        return f"{thoughts}{content}{written}{EOS}"

    def _render_result(self, messages: list[Message], n: int, content: str, ending: str) -> str:
        asked = n - 1
        while asked >= 0 and messages[asked]["role"] == "tool":
            asked -= 1
        caller = messages[asked]  # of a first message, as in the engine, the last one
        calls = caller.get("tool_calls") if n == 0 or (asked >= 0 and caller["role"] == "assistant") else None
        if not calls or len(calls) < n - asked:
            raise UnrenderableChat("a tool result without a call")
        begin = "\n\n<function_results>" if n - asked == 1 else ""
        end = f"\n</function_results>\n\n{ending}" if n - asked == len(calls) else ""
        return f"{begin}\n<result>{content}</result>{end}"


class DeepseekV4:
    """Renders chats for DeepSeek V4; `v41`: for V4.1."""

    def __init__(self, *, v41: bool = False) -> None:
        self._v41 = self.reads_given = v41
        self._tags = TAGS_V41 if v41 else TAGS_V4
        self._notice = TOOLS_V4.replace("{calls}", self._tags.calls).replace("{invoke}", self._tags.invoke)
        self._notice = self._notice.replace("{parameter}", self._tags.parameter)

    def render_chunks(self, chat: Chat, variables: dict[str, Any]) -> list[str]:
        """Return the prompt, one chunk per message. Raises UnrenderableChat."""
        if chat.has_media:
            raise UnrenderableChat("media")
        values = variables | chat.template_kwargs
        thinking = bool(values.get("thinking") or values.get("enable_thinking"))
        thinking = thinking or ("thinking" not in values and "enable_thinking" not in values)
        effort = values.get("reasoning_effort")
        thinking = thinking and effort != "none"
        begin = self._effort(None if effort == "none" else effort)
        if not thinking:
            begin = ""
        messages = _merge_results(_give_tools(self._read(chat), chat.tools))
        drops = values.get("drop_thinking", True) and not any(message.get("tools") for message in messages)
        if thinking and drops:
            messages = _drop_reasoning(messages, self._last(messages))
        if self._v41 and messages and (begin or messages[0]["role"] == "system"):
            begin = SYSTEM + begin
        last = self._last(messages) if drops else -1
        rendered = [self._render(messages, n, last, thinking) for n in range(len(messages))]
        return [BOS + begin, *rendered]

    def _effort(self, effort: Any) -> str:
        if not self._v41:
            if not isinstance(effort, str):
                return EFFORTS_V4["high"]
            return EFFORTS_V4["low" if effort in ("low", "minimal", "medium") else "max" if effort == "max" else "high"]
        budget = EFFORTS_V41["high"] if effort is None else effort
        if isinstance(budget, str):
            budget = EFFORTS_V41.get(budget)
        if type(budget) is not int or not 1 <= budget <= 100:
            raise UnrenderableChat(f"reasoning_effort {effort!r}")
        return f"Reasoning Effort: {budget} (range 1-100, the higher the value, the more thorough the reasoning)\n\n"

    def _read(self, chat: Chat) -> list[Message]:
        """Return the messages with their content as one text."""
        if not self._v41:
            return [_join_parts(flatten(message, "openai")) for message in chat.messages]
        if chat.given is None:
            raise UnrenderableChat("its messages are not known as the client sent them")
        given = (message.get("content") for message in chat.given.messages)
        pairs = zip(chat.messages, given, strict=True)
        return [message | {"content": _join_given(content)} for message, content in pairs]

    def _last(self, messages: Sequence[Message]) -> int:
        """Return the number of the last message to be answered: system messages, but for a first one, are in V4.1."""
        last = _last(messages, ("user", "developer"))
        return max(last, _last(messages, ("system",))) if self._v41 and _last(messages, ("system",)) > 0 else last

    def _render(self, messages: list[Message], n: int, last: int, thinking: bool) -> str:
        message, role = messages[n], messages[n]["role"]
        text = self._render_message(message, n, n > 0 and messages[n - 1].get("task") is not None, last, thinking)
        following = messages[n + 1]["role"] if n + 1 < len(messages) else None
        if following not in (None, "assistant", "latest_reminder"):
            return text
        mode = THINK if thinking else THOUGHT
        if (task := message.get("task")) is not None:
            if task not in TASKS:
                raise UnrenderableChat(f"task {task!r}")
            mark = f"<\uff5c{task}\uff5c>"
            return text + (f"{ASSISTANT}{mode}{mark}" if task == "action" else mark)
        if role in ("user", "developer") or (role == "system" and (n > 0 or not self._v41)):
            return text + ASSISTANT + (THINK if thinking and n >= last else THOUGHT)
        return text

    def _render_message(self, message: Message, n: int, is_task: bool, last: int, thinking: bool) -> str:
        role, content = message["role"], message.get("content") or ""
        if role == "system":
            mark = SYSTEM if self._v41 and n > 0 else ""
            return mark + content + _tools(self._notice, message.get("tools"))
        if role == "developer":
            if not content:
                raise UnrenderableChat("an empty developer message")
            return USER + content + _tools(self._notice, message.get("tools"))
        if role == "user":
            return USER + "\n\n".join(text for _, text in message["blocks"])
        if role == "latest_reminder":
            return REMINDER + content
        if role != "assistant":
            raise UnrenderableChat(f"role {role!r}")
        thoughts = (message.get("reasoning") or "") + THOUGHT if thinking and not is_task and n > last else ""
        calls = message.get("tool_calls")
        written = "\n\n" + self._tags.write(list(_calls(calls))) if calls else ""
        return f"{thoughts}{content}{written}{EOS}"


def _merge_results(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with consecutive user messages and tool results as one user message, its results in the
    order of their calls. Its `blocks` are pairs: the id of a result's call (None: text), and the text.
    """
    merged: list[Message] = []
    for message in messages:
        role = message["role"]
        if role not in ("user", "tool"):
            merged.append(message)
            continue
        content = message.get("content") or ""
        block = (None, content) if role == "user" else (message.get("tool_call_id") or "", _result(content))
        before = merged[-1] if merged and merged[-1]["role"] == "user" else None
        if before is not None and (role == "tool" or before.get("task") is None):
            before["blocks"].append(block)
        else:
            kept = {"task": message["task"]} if role == "user" and "task" in message else {}
            merged.append({"role": "user", "blocks": [block], **kept})
    order: dict[Any, int] = {}
    for message in merged:
        if message["role"] == "assistant" and (calls := message.get("tool_calls")):
            order = {call["id"]: n for n, call in enumerate(calls) if call.get("id")}
        elif message["role"] == "user":
            results = iter(sorted((b for b in message["blocks"] if b[0] is not None), key=lambda b: order.get(b[0], 0)))
            message["blocks"] = [block if block[0] is None else next(results) for block in message["blocks"]]
    return merged


def _result(content: str) -> str:
    return f"<tool_result>{content}</tool_result>"


def _give_tools(messages: list[Message], tools: list[Message] | None) -> list[Message]:
    """Return the messages with the tools in the first system message, which is added if there is none."""
    if not tools:
        return messages
    first = next((n for n, message in enumerate(messages) if message["role"] == "system"), None)
    if first is None:
        return [{"role": "system", "tools": tools}, *messages]
    return [*messages[:first], messages[first] | {"tools": tools}, *messages[first + 1 :]]


def _drop_reasoning(messages: Sequence[Message], last: int) -> list[Message]:
    """Return the messages without the reasoning of assistants, and without developers, before message `last`."""
    return [
        {name: value for name, value in message.items() if name != "reasoning"}
        if n < last and message["role"] == "assistant"
        else message
        for n, message in enumerate(messages)
        if n >= last or message["role"] != "developer"
    ]


def _last(messages: Sequence[Message], roles: Sequence[str]) -> int:
    return max((n for n, message in enumerate(messages) if message["role"] in roles), default=-1)


def _tools(notice: str, tools: Sequence[Message] | None) -> str:
    if not tools:
        return ""
    listed = "\n".join(_json(tool["function"]) for tool in tools)
    return "\n\n" + notice.replace("|DSML|", DSML).replace("{tools}", listed)


def _calls(calls: Sequence[Message]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the name and arguments of each call."""
    for call in calls:
        yield call["function"]["name"], call["function"]["arguments"]


def _join_parts(message: Message) -> Message:
    content = message["content"]
    if isinstance(content, str):
        return dict(message)
    if any(part["type"] != "text" for part in content):
        raise UnrenderableChat("content that is not text")
    return message | {"content": "\n\n".join(part["text"] for part in content)}


def _join_given(content: Any) -> str:
    """Return a message's content as V4.1 reads it: as the client sent it."""
    if not isinstance(content, list):
        return content or ""
    for part in content:
        if not isinstance(part, dict) or part.get("type") not in ("text", "input_text", "output_text"):
            raise UnrenderableChat("content that is not text")
    return "\n\n".join(part.get("text") or "" for part in content)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
