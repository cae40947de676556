"""`/v1/messages`: converts the request into a chat as the engine does.

Follows vLLM 0.32's anthropic/serving.py: system blocks joined without a separator, `tool_use` blocks as tool calls
with their input as JSON text, `tool_result` blocks as tool messages *before* the rest of the user's message,
thinking as reasoning. Two things depend on the template and are done in `prompt/tokenization/chat_template.py`
(`Chat.anthropic`): if a template accepts a system message only at the beginning, later ones are merged into it, and
`thinking: disabled` requests the effort "none" or, if a template does not support that value, "low".
"""

from __future__ import annotations

import json
from typing import Any

from msgspec import UNSET

from router.prompt.api.field_values import is_present, require, short_value, text_of, value
from router.prompt.api.fields import BodyFields, Part
from router.prompt.api.openai import ChatRequest, chat_prompt, template_kwargs, template_tool, unknown_ids
from router.prompt.prompt import PromptFields

Message = dict[str, Any]

BILLING = "x-anthropic-billing-header"  # one client puts this line before its system prompt, new with every request


class MessagesFields(BodyFields):
    """Fields of a `/v1/messages` body."""

    messages: Part = UNSET
    system: Part = UNSET
    tools: Part = UNSET
    tool_choice: Part = UNSET
    thinking: Part = UNSET
    output_config: Part = UNSET
    chat_template_kwargs: Part = UNSET


class _Refused(Exception):
    """The engine will refuse this request: there is nothing to convert."""


def check_messages(fields: MessagesFields) -> None:
    """Raise BadRequest for a missing or mistyped prompt field."""
    require(fields.messages, "messages", b"[", "an array")
    if is_present(fields.system):
        require(fields.system, "system", b'"[', "a string or an array")


def read_messages(fields: MessagesFields) -> PromptFields:
    """Return the prompt of the request as a chat."""
    kwargs = template_kwargs(value(fields.chat_template_kwargs, "chat_template_kwargs"), _effort(fields))
    messages = value(fields.messages, "messages")
    try:
        chat = _system(value(fields.system, "system")) + [m for message in _blocks(messages) for m in _convert(message)]
        tools = _tools(value(fields.tools, "tools"))
    except _Refused as refused:
        return unknown_ids(str(refused))
    choice = short_value(fields.tool_choice)
    declined = isinstance(choice, dict) and choice.get("type") == "none"
    has_variables = is_present(fields.chat_template_kwargs)
    request = ChatRequest(
        chat, tools, kwargs, tools_declined=declined, effort=_effort(fields), has_variables=has_variables
    )
    return chat_prompt(request, anthropic=True)


def _effort(fields: MessagesFields) -> str | None:
    thinking, config = value(fields.thinking, "thinking"), value(fields.output_config, "output_config")
    if isinstance(thinking, dict) and thinking.get("type") == "disabled":
        return "none"
    effort = config.get("effort") if isinstance(config, dict) else None
    return effort if isinstance(effort, str) else None


def _system(system: Any) -> list[Message]:
    if isinstance(system, str):
        return [{"role": "system", "content": system}] if system else []
    texts = [text_of(block.get("text")) for block in _blocks(system) if block.get("type") == "text"]
    text = "".join(text for text in texts if text and not text.startswith(BILLING))
    return [{"role": "system", "content": text}] if text else []


def _convert(message: Message) -> list[Message]:
    """Return the chat messages made from one message: its tool results become separate messages in front of it."""
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system") or not isinstance(content, str | list):
        raise _Refused("content")
    if role == "system":
        return _inline_system(content)
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    before: list[Message] = []
    own = _from_blocks(role, content, before)
    return before if role == "user" and "content" not in own else [*before, own]


def _inline_system(content: str | list[Any]) -> list[Message]:
    if isinstance(content, str):
        return [] if not content or content.startswith(BILLING) else [{"role": "system", "content": content}]
    if any(block.get("type") in ("tool_addition", "tool_removal") for block in _blocks(content)):
        raise _Refused("tool_changes")
    return _system(content)


def _from_blocks(role: str, blocks: list[Any], before: list[Message]) -> Message:
    parts: list[Message] = []
    calls: list[Message] = []
    thoughts: list[str] = []
    for block in _blocks(blocks):
        kind = block.get("type")
        if kind == "text" and (text := text_of(block.get("text"))):
            parts.append({"type": "text", "text": text})
        elif kind == "image" and block.get("source"):
            parts.append(_image(block["source"]))
        elif kind == "thinking" and isinstance(block.get("thinking"), str):
            thoughts.append(block["thinking"])
        elif kind == "tool_use":
            calls.append(_call(block))
        elif kind == "tool_result" and role == "user":
            before += _result(block)
        elif kind == "tool_result":
            parts.append({"type": "text", "text": f"Tool result: {block.get('content') or ''}"})
    message: Message = {"role": role}
    if thoughts:
        message["reasoning"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    if parts:
        message["content"] = parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts
    return message


def _call(block: Message) -> Message:
    if not block.get("id"):
        raise _Refused("content")  # the engine would generate an id from the time of day
    name, arguments = block.get("name") or "", json.dumps(block.get("input") or {})
    return {"id": block["id"], "type": "function", "function": {"name": name, "arguments": arguments}}


def _result(block: Message) -> list[Message]:
    """Return the tool message of a result, then its images and its tool references, each as one more message."""
    content = block.get("content")
    answer = {"role": "tool", "tool_call_id": block.get("tool_use_id") or ""}
    if isinstance(content, str) or not content:
        return [answer | {"content": content or ""}]
    items = _blocks(content)
    texts = [text_of(item.get("text")) or "" for item in items if item.get("type") == "text"]
    images = [_image(item.get("source", {})) for item in items if item.get("type") == "image"]
    names = [item.get("tool_name") or item.get("name") for item in items if item.get("type") == "tool_reference"]
    references = [{"type": "tool_reference", "name": name} for name in names if name]
    messages: list[Message] = [answer | {"content": "\n".join(texts)}]
    if images:
        messages.append({"role": "user", "content": images})
    if references:
        messages.append(answer | {"content": references})
    return messages


def _image(source: Any) -> Message:
    """Return an image part; its URL is irrelevant, since everything after it is unknown anyway."""
    return {"type": "image_url", "image_url": {"url": source.get("url", "") if isinstance(source, dict) else ""}}


def _tools(tools: Any) -> list[dict[str, Any]] | None:
    if tools is None:
        return None
    converted = []
    for tool in _blocks(tools):
        schema = tool.get("input_schema")
        if not isinstance(schema, dict) or not isinstance(tool.get("name"), str):
            raise _Refused("tools")
        parameters = schema if "type" in schema else schema | {"type": "object"}
        converted.append(template_tool(tool | {"parameters": parameters}))
    return converted


def _blocks(blocks: Any) -> list[Message]:
    if blocks is None:
        return []
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise _Refused("content")
    return blocks
