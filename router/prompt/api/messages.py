"""Chat messages as vLLM 0.32 passes them to the template, except that content stays a list of parts.

A template's output depends on which keys a message has and in which order, so this module follows the engine
exactly: the engine's request models reorder the keys of a tool call, and its chat parser keeps only the fields that
it supports, turns arguments into objects (anything else becomes `{}`), gives `reasoning` a second name, and drops a
line that one client puts before system prompts. Source: vLLM's renderers/chat_utils.py and its chat_completion
protocol. Messages that the engine would refuse become `None`; the engine's error message reaches the client.
"""

from __future__ import annotations

import json
from typing import Any

from router.prompt.prompt import MEDIA

Message = dict[str, Any]

_BILLING = "x-anthropic-billing-header"  # changes with every request, so the engine drops that line
_TEXT_KEY = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "thinking": "thinking"}
_IMAGE_KEYS = {"image_url", "input_image", "image_embeds", "image_pil"}
_MEDIA_KEYS = _IMAGE_KEYS | {"audio_url", "input_audio", "audio_embeds", "video_url", "video_embeds"}
_TEXT_KEYS = {"type", "text", "refusal", "thinking", "closed", "name"}
_KNOWN_PART_KEYS = _MEDIA_KEYS - {"input_image"} | _TEXT_KEYS | {"data", "file", "uuid", "prompt_cache_breakpoint"}


def normalise(messages: list[Any], *, validated: bool = True) -> list[Message] | None:
    """Return the messages as the template sees them; None if the engine would refuse them or use embeddings.

    `validated`: the engine passes these through its chat request model, which reorders the keys of tool calls.
    """
    normal = []
    for message in messages:
        if (one := _message(message, validated)) is None:
            return None
        normal.append(one)
    return normal


def has_media(messages: list[Message]) -> bool:
    """Return whether a content part of the normalised messages is `MEDIA`."""
    return any(part["type"] == MEDIA for message in messages for part in message["content"])


def find_image(messages: list[Any]) -> int:
    """Return the number of the first message with media, or of the last message if none has media. The messages
    must have been normalised successfully before.
    """
    return next((n for n, message in enumerate(messages) if any(map(_is_media, _parts(message)))), len(messages) - 1)


def replace_images(messages: list[Any], part: Message) -> list[Any] | None:
    """Return successfully normalised messages with `part` in the place of each image; None if they have other
    media.
    """
    replaced = []
    for message in messages:
        if media := [one for one in _parts(message) if _is_media(one)]:
            if not all(map(_is_image, media)):
                return None
            message = message | {"content": [part if _is_media(one) else one for one in message["content"]]}
        replaced.append(message)
    return replaced


def _parts(message: Message) -> list[Any]:
    content = message.get("content")
    return content if isinstance(content, list) else []


def _is_media(part: Any) -> bool:
    """Return whether a content part, whose type is a string or missing, becomes `MEDIA`."""
    return isinstance(part, dict) and _modality(part) is not None


def _is_image(part: Message) -> bool:
    return _modality(part) == "image"


def _modality(part: Message) -> str | None:
    """Return the type under which templates see a part that is not text; None for text."""
    kind = part.get("type")
    keys = sorted(_MEDIA_KEYS.intersection(part)) if kind is None else [kind] if kind in _MEDIA_KEYS else []
    if not keys:
        return None
    return "image" if keys[0] in _IMAGE_KEYS else "audio" if "audio" in keys[0] else "video"


def _message(message: Any, validated: bool) -> Message | None:
    if not isinstance(message, dict) or not isinstance(role := message.get("role"), str):
        return None
    if (content := _content(message.get("content"), role)) is None:
        return None
    normal: Message = {"role": role, "content": content}
    if role == "assistant":
        if (calls := _tool_calls(message.get("tool_calls"), validated)) is None:
            return None
        if calls:
            normal["tool_calls"] = calls
        reasoning = message.get("reasoning")
        if reasoning is None and validated:
            reasoning = message.get("reasoning_content")
        if reasoning is not None:
            normal["reasoning"] = normal["reasoning_content"] = reasoning
    elif role == "tool" and "tool_call_id" in message:
        normal["tool_call_id"] = message["tool_call_id"]
    for key in ("name", "task"):
        if isinstance(message.get(key), str):
            normal[key] = message[key]
    if role == "developer":
        normal["tools"] = message.get("tools")
    return normal


def _content(content: Any, role: str) -> list[Message] | None:
    if content is None:
        return []
    if isinstance(content, str):
        content = [content]
    if not isinstance(content, list):
        return None
    parts: list[Message] = []
    for part in content:
        if (normal := _part(part)) is None:
            return None
        if role == "system" and not _keep_after_billing(normal, part):
            continue
        if normal:
            parts.append(normal)
    return parts


def _part(part: Any) -> Message | None:
    """Return one normalised content part; `{}` for a part that the engine skips, None for one that it refuses."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, dict):
        return None
    kind = part.get("type")
    if not (kind is None or isinstance(kind, str)):
        return None
    plain = part.get("uuid") is None
    if plain and kind in _TEXT_KEY:
        text = part.get(_TEXT_KEY[kind])
        if text is None and kind in ("text", "refusal"):
            return {}
        if not isinstance(text, str):
            return None
        return {"type": "text", "text": text} | {k: v for k, v in part.items() if k not in _KNOWN_PART_KEYS}
    if plain and kind == "tool_reference":
        return {"type": "tool_reference", "name": part["name"]} if isinstance(part.get("name"), str) else None
    modality = _modality(part)
    return None if modality is None else {"type": MEDIA, "modality": modality}


def _keep_after_billing(normal: Message, part: Any) -> bool:
    """Drop the client's billing line from a system text. Return False if nothing is left of the part."""
    if isinstance(part, dict) and part.get("type") != "text":
        return True
    text = normal.get("text", "")
    if text.startswith(_BILLING):
        normal["text"] = text.partition("\n")[2]
        return bool(normal["text"])
    return True


def _tool_calls(calls: Any, validated: bool) -> list[Message] | None:
    if calls is None:
        return []
    if not isinstance(calls, list):
        return None
    normal = []
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or call.get("type", "function") != "function":
            return None
        function = function | {"arguments": parse_arguments(function.get("arguments"))}
        call = call | {"function": function}
        if validated:
            call["function"] = _in_order(function, ("arguments", "name"))
            call = _in_order(call, ("id", "function", "type"))
        normal.append(call)
    return normal


def parse_arguments(raw: Any) -> dict[str, Any]:
    """Return a tool call's arguments as an object: parsed from JSON text, unchanged, or `{}` for anything else."""
    if isinstance(raw, str) and raw:
        try:
            raw = json.loads(raw)
        except (ValueError, RecursionError):
            return {}
    return raw if isinstance(raw, dict) else {}


def _in_order(record: Message, first: tuple[str, ...]) -> Message:
    return {key: record[key] for key in first if key in record} | record
