"""Renders chats for Mistral models as vLLM does in its mistral mode: by mistral-common, the model maker's own library.

vLLM 0.32 (tokenizers/mistral.py, renderers/mistral.py) hands the client's messages to the library, with two changes:
ids of tool calls are cut to their last nine characters, and arguments that are no JSON object are an empty one. How
a chat is laid out depends on the tokenizer's version; from v13 on a turn's prompt is the beginning of the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from mistral_common.exceptions import MistralCommonException
from mistral_common.protocol.instruct.messages import AssistantMessage, SystemMessage, ToolMessage, UserMessage
from mistral_common.protocol.instruct.request import ChatCompletionRequest, ModelSettings, ReasoningEffort
from mistral_common.protocol.instruct.tool_calls import Tool
from mistral_common.protocol.instruct.validator import ValidationMode
from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from pydantic import ValidationError
from tokenizers import AddedToken

from router.prompt.prompt import MEDIA, Chat, GivenChat
from router.prompt.tokenization.chat_template import UnrenderableChat
from router.prompt.tokenization.message_renderer import SegmentedPrompt

CALL_ID_CHARS: Final = 9
HISTORY_SINCE: Final = 3  # these three: tokenizer versions; older ones leave out tool calls of earlier turns
TOOLS_FIRST_SINCE: Final = 13  # older ones, but for the first, put tools into the last user message
EFFORT_SINCE: Final = 15
EFFORTS: Final = frozenset(effort.value for effort in ReasoningEffort)
REFUSALS: Final = (MistralCommonException, ValidationError, AssertionError, ValueError, TypeError, LookupError)

Message = dict[str, Any]


def load_file(file: Path) -> Any:
    """Read tekken.json, or a tokenizer.model.v*. Raises OSError, ValueError and KeyError."""
    return MistralTokenizer.from_file(str(file), mode=ValidationMode.test)


class MistralCodec:
    """Encodes text as the engine does for `/v1/completions`: spellings of special tokens are ordinary text."""

    added: Sequence[AddedToken] = ()

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """See `TextCodec`."""
        ids: list[int] = self._tokenizer.encode(text, bos=add_special_tokens, eos=False)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """See `TextCodec`."""
        text: str = self._tokenizer.decode(list(ids), special_token_policy=SpecialTokenPolicy.IGNORE)
        return text


class _Segmenting:
    """Stands in the library for its encoder of whole chats, and makes segments: what it would encode, per message.

    One user message carries the tools, the settings and, in old versions, the system prompt. A segment has nothing
    that does not change its ids, so that a next turn has the same segments.
    """

    def __init__(self, encoder: Any, version: int) -> None:
        self._encoder = encoder
        self._version = version

    def encode_instruct(self, request: Any) -> SegmentedPrompt:
        """Return a segment per message of a chat that the library has validated and normalised."""
        encoder, messages = self._encoder, request.messages
        encoder.validate_messages(messages)
        first, last = encoder.find_first_last_user(request)
        carrier = last if 1 < self._version < TOOLS_FIRST_SINCE else first
        tools = [_dump(tool) for tool in request.available_tools or ()]
        context = None
        if tools or request.system_prompt or self._version >= EFFORT_SINCE:
            context = tools, request.system_prompt, _dump(request.settings)
        segments: list[tuple[str, Any, Any]] = []
        for n, message in enumerate(messages):
            if isinstance(message, UserMessage):
                segments.append(("user", _dump(message), context if n == carrier else None))
            elif isinstance(message, SystemMessage):
                segments.append(("system", _dump(message), None))
            else:
                kind = "tool" if isinstance(message, ToolMessage) else "assistant"
                segments.append((kind, _dump(message), n < last and self._version < HISTORY_SINCE))
        return SegmentedPrompt(encoder.start(), [msgspec.json.encode(segment) for segment in segments], [])

    def encode_segment(self, segment: bytes) -> list[int]:
        """Return the ids of one message."""
        kind, message, place = msgspec.json.decode(segment)
        ids: list[int]
        if kind == "user":
            tools, system, settings = place or ([], None, {})
            options = {"system_prompt": system, "settings": ModelSettings.model_validate(settings)}
            available = [Tool.model_validate(tool) for tool in tools]
            user, carries = UserMessage.model_validate(message), place is not None
            ids, *_ = self._encoder.encode_user_message(
                user, available, carries, carries, force_img_first=True, **options
            )
        elif kind == "system":
            ids, *_ = self._encoder.encode_system_message(SystemMessage.model_validate(message))
        elif kind == "tool":
            ids, *_ = self._encoder.encode_tool_message(ToolMessage.model_validate(message), place)
        else:
            answer = AssistantMessage.model_validate(message)
            ids = self._encoder.encode_assistant_message(message=answer, is_before_last_user_message=place)
        return ids


def _dump(value: Any) -> Any:
    return value.model_dump(mode="json")


class MistralRenderer:
    """Renders chats."""

    def __init__(self, library: Any) -> None:
        """`library`: see `load_file`; it is changed."""
        encoder = library.instruct_tokenizer
        self.codec = MistralCodec(encoder.tokenizer)
        version = encoder.tokenizer.version.value  # such as v7 and v7m1
        self._version = int(version.removeprefix("v").partition("m")[0])
        self._segmenting = library.instruct_tokenizer = _Segmenting(encoder, self._version)
        self._library = library

    def segment(self, chat: Chat) -> SegmentedPrompt:
        """Return the prompt, one segment per message. Raises UnrenderableChat for a chat that the engine refuses."""
        if chat.given is None:
            raise UnrenderableChat("its messages are not known as the client sent them")
        self._check(chat, chat.given)
        _check_parts(chat.given)
        effort: dict[str, Any] = {}
        if self._version >= EFFORT_SINCE:
            effort["reasoning_effort"] = chat.template_kwargs.get("reasoning_effort")
        try:
            request: Any = ChatCompletionRequest.from_openai(
                messages=_adapt(chat, chat.given),
                tools=chat.tools,
                continue_final_message=chat.continue_final_message,
                **effort,
            )
            prompt: SegmentedPrompt = self._library.encode_chat_completion(request)
        except REFUSALS as refusal:
            raise UnrenderableChat(str(refusal)) from None
        return prompt

    def encode(self, segment: bytes) -> list[int]:
        """Return the ids of one segment that `segment` returned. Raises UnrenderableChat."""
        try:
            return self._segmenting.encode_segment(segment)
        except REFUSALS as refusal:
            raise UnrenderableChat(str(refusal)) from None

    def find_date(self, ids: Sequence[int]) -> str | None:
        """See `MessageRenderer`."""
        return None

    def lasts_s(self) -> float | None:
        """See `MessageRenderer`."""
        return None

    def _check(self, chat: Chat, given: GivenChat) -> None:
        """Raise UnrenderableChat for what vLLM refuses before it calls the library."""
        if any(part["type"] == MEDIA for message in chat.messages for part in message["content"]):
            raise UnrenderableChat("media")
        if given.has_variables:
            raise UnrenderableChat("chat_template_kwargs")
        if given.items is None and given.effort and given.effort not in EFFORTS:
            raise UnrenderableChat(f"reasoning_effort {given.effort!r}")
        if not chat.messages or (chat.add_generation_prompt and chat.continue_final_message):
            raise UnrenderableChat("no messages, or a last one that is both finished and not")
        ends_open = chat.messages[-1]["role"] == "assistant"
        if ends_open != chat.continue_final_message and (chat.add_generation_prompt or chat.continue_final_message):
            raise UnrenderableChat("the last message cannot be answered, or continued")


def _adapt(chat: Chat, given: GivenChat) -> list[Message]:
    """Return the messages as the library gets them."""
    adapted = []
    for message, read in zip(given.messages, chat.messages, strict=True):
        one = dict(message)
        if isinstance(content := one.get("content"), list):
            if not all(isinstance(part, dict) for part in content):
                raise UnrenderableChat("a content part is not an object")
            one["content"] = [part for part in content if part.get("type")]
        if one.get("role") == "assistant":
            calls = read.get("tool_calls") or []
            one["tool_calls"] = [call | {"id": str(call.get("id"))[-CALL_ID_CHARS:]} for call in calls]
            one.pop("reasoning_content", None)  # the same under its former name
            if (reasoning := read.get("reasoning")) is not None:
                one["reasoning"] = reasoning
        elif "tool_call_id" in one:
            one["tool_call_id"] = str(one["tool_call_id"])[-CALL_ID_CHARS:]
        adapted.append(one)
    return adapted


def _check_parts(given: GivenChat) -> None:
    """Raise UnrenderableChat for text in parts of `/v1/responses` that the library does not know."""
    for item in given.items or ():
        content = item.get("content") if item.get("role") != "assistant" else item.get("output")
        for part in content if isinstance(content, list) else ():
            if part.get("type") in ("input_text", "output_text"):
                raise UnrenderableChat(f"a part of type {part['type']!r}")
