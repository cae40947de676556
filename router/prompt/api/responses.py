"""`/v1/responses`: converts input items into chat messages; several items may form one message.

Follows vLLM 0.32's openai/responses/utils.py: consecutive reasoning, text and function calls form one assistant
message as long as its slot is free; of an assistant's content parts only the first counts; a last message marked
unfinished is continued. Prompts that continue an earlier response are unknown here: their beginning is stored by
the engine that made that response. Unlike chat, this endpoint tokenises with special tokens added, and its messages
do not pass through the chat request model (`validated=False`: a tool call keeps its keys' order).
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
from msgspec import UNSET

from router.prompt.api.field_values import is_present, require, short_value, starts_with, value
from router.prompt.api.fields import BodyFields, Part
from router.prompt.api.openai import ChatRequest, chat_prompt, template_kwargs, template_tool, unknown_ids
from router.prompt.prompt import PromptFields, UnknownIds

Message = dict[str, Any]

_CUSTOM_SCHEMA = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The freeform text payload for this tool."}},
    "required": ["input"],
    "additionalProperties": False,
}  # as the engine describes a free-form tool to the model


class ResponsesFields(BodyFields):
    """Fields of a `/v1/responses` body."""

    max_tokens: Part = msgspec.field(name="max_output_tokens", default=UNSET)
    input: Part = UNSET
    instructions: str | None = None
    tools: Part = UNSET
    tool_choice: Part = UNSET
    reasoning: Part = UNSET
    chat_template_kwargs: Part = UNSET
    previous_response_id: str | None = None
    conversation: Part = UNSET
    previous_input_messages: Part = UNSET


def check_responses(fields: ResponsesFields) -> None:
    """Raise BadRequest for a missing or mistyped prompt field."""
    require(fields.input, "input", b'"[', "a string or an array")


def read_responses(fields: ResponsesFields) -> PromptFields:
    """Return the prompt of the request as a chat."""
    if fields.previous_response_id is not None or is_present(fields.previous_input_messages):
        return unknown_ids("previous_response")
    reasoning = value(fields.reasoning, "reasoning")
    effort = reasoning.get("effort") if isinstance(reasoning, dict) else None
    kwargs = template_kwargs(value(fields.chat_template_kwargs, "chat_template_kwargs"), effort)
    messages: list[Message] = []
    if fields.instructions:
        messages.append({"role": "system", "content": fields.instructions})
    continued = False
    if starts_with(fields.input, b'"'):
        items = [{"role": "user", "content": value(fields.input, "input")}]
        messages += items
    else:
        items = value(fields.input, "input")
        converted: list[Message] = []
        for item in items:
            if not isinstance(item, dict) or not _add_item(item, converted):
                return unknown_ids("content")
        messages += converted
        last = items[-1] if items else {}
        unfinished = last.get("status") in ("in_progress", "incomplete")
        continued = unfinished and last.get("type", "message") in ("message", "reasoning")
    tools = _tools(value(fields.tools, "tools"))
    declined = short_value(fields.tool_choice) == "none"
    instructions = [] if fields.instructions is None else [{"role": "system", "content": fields.instructions}]
    request = ChatRequest(
        messages,
        tools,
        kwargs,
        add_generation_prompt=not continued,
        continue_final_message=continued,
        tools_declined=declined,
        effort=effort if isinstance(effort, str) else None,
        items=[*instructions, *items],
    )
    return chat_prompt(request, add_special_tokens=True, validated=False)


def _add_item(item: Message, messages: list[Message]) -> bool:
    """Add one input item to the chat, or to its last message. Return False for an item that the engine refuses."""
    kind = item.get("type")
    if kind in ("function_call", "custom_tool_call"):
        return _fill(messages, "tool_calls", _call(item))
    if kind == "reasoning":
        reasoning = None if item.get("encrypted_content") else _reasoning_text(item)
        return reasoning is not None and _fill(messages, "reasoning", reasoning)
    if kind in ("function_call_output", "custom_tool_call_output"):
        output = {"role": "tool", "content": item.get("output"), "tool_call_id": item.get("call_id")}
        messages.append(_with_text_parts(output))
        return True
    if item.get("role") == "assistant":
        text = _first_text(item.get("content"))
        return text is not None and _fill(messages, "content", text)
    if "role" in item:
        messages.append(_with_text_parts(item))
        return True
    return False


def _with_text_parts(item: Message) -> Message:
    """Return the item with text parts under the type name that chats and the engine's `/tokenize` use."""
    content = item.get("content")
    if not isinstance(content, list):
        return item
    return item | {"content": [_text_part(part) for part in content]}


def _text_part(part: Any) -> Any:
    is_text = isinstance(part, dict) and part.get("type") in ("input_text", "output_text")
    return {"type": "text", "text": part.get("text")} if is_text else part


def _fill(messages: list[Message], slot: str, content: Any) -> bool:
    """Put `content` into the last assistant message if its `slot` is free, else into a new message."""
    last = messages[-1] if messages and messages[-1].get("role") == "assistant" else None
    if slot == "tool_calls":
        if content is None:
            return False
        if last is not None:
            last.setdefault("tool_calls", []).append(content)
            return True
        content = [content]
    elif last is not None and last.get(slot) is None:
        last[slot] = content
        return True
    messages.append({"role": "assistant", slot: content})
    return True


def _call(item: Message) -> Message | None:
    name, call_id = item.get("name"), item.get("call_id")
    if not isinstance(name, str) or not isinstance(call_id, str):
        return None
    arguments = item.get("arguments")
    if item["type"] == "custom_tool_call":
        arguments = json.dumps({"input": item.get("input") or ""}, ensure_ascii=False)
    else:
        name = f"{item['namespace']}__{name}" if item.get("namespace") else name
    return {"id": call_id, "function": {"name": name, "arguments": arguments}, "type": "function"}


def _reasoning_text(item: Message) -> str | None:
    """Return the first text of the content, else of the summary; an empty string counts as reasoning, too."""
    for parts in (item.get("content"), item.get("summary")):
        if parts:
            return _first_text(parts)
    return ""


def _first_text(content: Any) -> str | None:
    if isinstance(content, list) and content and isinstance(content[0], dict):
        content = content[0].get("text")
    return content if isinstance(content, str) else None


def _tools(tools: Any) -> list[dict[str, Any]] | UnknownIds | None:
    """Return function tools as the template sees them; other kinds are not shown to the model."""
    if not tools:
        return None
    converted: list[dict[str, Any]] = []
    for tool in tools if isinstance(tools, list) else [tools]:
        if not isinstance(tool, dict) or not isinstance(tool.get("tools", []), list):
            return UnknownIds("tools")
        if tool.get("type") == "function":
            converted.append(template_tool(tool))
        elif tool.get("type") == "namespace":
            inner = [t for t in tool.get("tools") or [] if isinstance(t, dict) and t.get("type") == "function"]
            converted += [template_tool(t | {"name": f"{tool.get('name')}__{t.get('name')}"}) for t in inner]
        elif tool.get("type") == "custom":
            converted.append(template_tool(tool | {"parameters": _CUSTOM_SCHEMA}))
    return converted
