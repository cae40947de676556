"""The parameters of a generating request, read from its body as vLLM reads it.

The router's own packages (`prompt/api`, `prompt/tokenization/chat_template.py`) read and render prompts: the
project has one implementation of vLLM's conversions, which the tests against real engines check. This module adds
the fields that matter only to an engine: the token ids in a chat, the number of tokens and choices, and the tool
that must be called.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from router.clock import Clock
from router.errors import BadRequest, NotFound
from router.lab.emulator.disaggregation import DecodeParams, PrefillParams
from router.lab.emulator.options import EngineFaults, EngineOptions
from router.lab.emulator.sampling_limits import MAX_TOKENS, check_limits
from router.lab.emulator.vocabulary import SPECIAL, Vocabulary
from router.lab.simulator.engine_types import SequenceRequest
from router.prompt.api.messages import has_media, normalise
from router.prompt.api.parse import ReadOptions, read_prompt
from router.prompt.prompt import MEDIA, Chat, Ids, Source, Text, UnknownIds
from router.prompt.tokenization.chat_template import ChatTemplate, UnrenderableChat

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
READ_UNCHANGED = ReadOptions(strip_fields=frozenset(), inject_usage=False)
MAX_CHOICES = 64
IMAGE_TOKENS = 20
MARKS = ("\ue000", "\ue001", "\ue002")  # private use characters, placeholders for special tokens
IDS_PARAMETER = "kv_transfer_params.prompt_token_ids"
IDS_VERSION = (0, 32)  # the first version of vLLM that reads token ids in chats
SCALARS: dict[str, Any] = {"string": "warm", "integer": 1, "number": 1.5, "boolean": True, "null": None}
Body = dict[str, Any]


class ForcedTool(NamedTuple):
    """The tool call that the answer must consist of."""

    name: str
    arguments: str  # JSON
    chosen_by_name: bool  # False: the client required a call of any tool


class RequestParams(NamedTuple):
    model: str  # as requested: the base model or an adapter
    body: Body
    sequences: list[SequenceRequest]  # one per choice, grouped by prompt
    prompt_tokens: int  # of all prompts, each counted once
    tool: ForcedTool | None
    stream: bool
    include_usage: bool  # a last chunk with usage
    usage_per_chunk: bool
    transfer: PrefillParams | DecodeParams | None = None  # the request's half of a prefill/decode pair


class RequestParamsReader:
    """Reader of one engine's requests. `adapters`: the loaded adapters by name."""

    def __init__(
        self,
        options: EngineOptions,
        vocabulary: Vocabulary,
        clock: Clock,
        faults: Callable[[], EngineFaults],
        adapters: Mapping[str, str],
    ) -> None:
        self._options = options
        self._faults = faults
        self._vocabulary = vocabulary
        self._adapters = adapters
        own = None if options.chat_template is None else Path(options.chat_template).read_text(encoding="utf-8")
        self._template = ChatTemplate(own or vocabulary.config["chat_template"], clock.wall)
        tokens = ("bos_token", "eos_token", "pad_token", "unk_token")
        self._variables = {name: vocabulary.config[name] for name in tokens if name in vocabulary.config}

    def read(self, path: str, raw: bytes, body: Body) -> RequestParams:
        """Read a request; `body` is the decoded `raw`. Raises BadRequest or NotFound as the engine does."""
        adapter = self.read_adapter(body["model"])
        check_limits(path, body, self._options.context_tokens)
        prompts = self.read_prompts(path, raw, body, generates=True)
        if any(ids and not 0 <= min(ids) <= max(ids) < 2**32 for ids in prompts):
            raise BadRequest("Token ids are out of vocabulary.", param="prompt")
        tool = _read_forced_tool(body)
        script = None if tool is None else self._vocabulary.encode(tool.arguments)
        copies: int = 1 if body.get("n") is None else body["n"]
        if copies < 1:
            raise BadRequest(f"n must be at least 1, got {copies}.")
        if copies > MAX_CHOICES:
            raise BadRequest(f"n must be at most {MAX_CHOICES}, got {copies}.")
        sequences = [self._sequence(ids, body, adapter, script, copy) for ids in prompts for copy in range(copies)]
        stream_options = body.get("stream_options") or {}
        include_usage = bool(stream_options.get("include_usage"))
        return RequestParams(
            model=body.get("model") or self._options.model,
            body=body,
            sequences=sequences,
            prompt_tokens=sum(len(prompt) for prompt in prompts),
            tool=tool,
            stream=bool(body.get("stream")),
            include_usage=include_usage,
            usage_per_chunk=include_usage and bool(stream_options.get("continuous_usage_stats")),
        )

    def read_adapter(self, model: object) -> str | None:
        """Return the LoRA adapter named `model`. None for the base model, also if no model is named.

        Raises NotFound for any other name.
        """
        if not model or model == self._options.model:
            return None
        if model not in self._adapters:
            raise NotFound(f"The model `{model}` does not exist. Valid aliases: {self._options.model}.", param="model")
        return str(model)

    def read_prompts(self, path: str, raw: bytes, body: Body, *, generates: bool = False) -> list[list[int]]:
        """Return the token ids of every prompt as used by generation (`generates`) or as returned by /tokenize.

        Raises BadRequest for a prompt that cannot be read or rendered.
        """
        if path == CHAT and (ids := read_prompt_token_ids(self._options, self._faults(), body)) is not None:
            return [ids]
        if path == COMPLETIONS and isinstance(body.get("prompt"), list):
            several = body["prompt"]
            if several and not isinstance(several[0], int):
                special = body.get("add_special_tokens", True)
                return [p if isinstance(p, list) else self._vocabulary.encode(p, special=special) for p in several]
        source = read_prompt(path, None, raw, READ_UNCHANGED).source
        assert isinstance(source, Source)
        if generates and self._options.exclude_tools and isinstance(source, Chat) and source.tools_declined:
            source = source._replace(tools=None)
        if isinstance(source, Chat) and source.has_media and self._options.images and path == CHAT:
            return [self._ids_with_images(source, list_images(body["messages"]))]
        return [self._token_ids(source, generates)]

    def refuses_calls(self, messages: list[Any]) -> bool:
        """Return whether /tokenize rejects a chat because of the tool calls in its history."""
        return self._faults().tokenize_refuses_calls and any(message.get("tool_calls") for message in messages)

    def _token_ids(self, source: Source, generates: bool) -> list[int]:
        match source:
            case Ids(ids):
                return list(ids)
            case Text(text, special):
                return self._vocabulary.encode(text, special=special)
            case Chat():
                return self._generated_ids(source) if generates else self._chat_ids(source)
            case UnknownIds(reason):
                raise BadRequest(f"the emulated engine cannot read this prompt: {reason}")

    def _generated_ids(self, chat: Chat) -> list[int]:
        """Return the ids that generation uses. `faults.renders` can make them differ from /tokenize's."""
        if self._faults().refuses_chats:
            raise BadRequest("the model has no chat template", param="messages")
        renders = self._faults().renders
        if renders == "special_as_text":
            return self._encode_special_as_text(chat)
        ids = self._chat_ids(chat)
        if renders == "same_count":
            return [ids[1], ids[0], *ids[2:]]
        return [ids[0], *ids] if renders == "other_count" else ids

    def _encode_special_as_text(self, chat: Chat) -> list[int]:
        """Return the ids of a chat whose only special tokens are the template's, not those spelled in messages.

        Marks replace the latter while the template is rendered.
        """
        marked = [_replace_special(message, SPECIAL, MARKS) for message in chat.messages]
        text = self._template.render(chat._replace(messages=marked), self._variables)
        ids: list[int] = []
        for piece in re.split("(" + "|".join(map(re.escape, SPECIAL)) + ")", text):
            plain = _replace_special(piece, MARKS, SPECIAL)
            ids += self._vocabulary.encode(piece) if piece in SPECIAL else self._vocabulary.encode_text(plain)
        return ids

    def _chat_ids(self, chat: Chat) -> list[int]:
        if not chat.messages:
            raise BadRequest("Cannot apply chat template to an empty conversation. Provide at least one message.")
        if chat.has_media:
            raise BadRequest(f"{self._options.model} is not a multimodal model")
        try:
            text = self._template.render(chat, self._variables)
        except UnrenderableChat as refusal:
            raise BadRequest(str(refusal), param="messages") from None
        return self._vocabulary.encode(text, special=chat.add_special_tokens)

    def _ids_with_images(self, chat: Chat, images: list[bytes]) -> list[int]:
        """Return the ids of a chat with images. Each image takes `IMAGE_TOKENS` ids of its own, where vLLM has
        placeholders, with the image's identity among the extra keys of their blocks. As in vLLM, images precede
        their message's text if the template takes the content as one string.
        """
        in_front = self._template.content_format == "string"
        messages = [_mark_images(message, in_front) for message in chat.messages]
        text = self._template.render(chat._replace(messages=messages, has_media=False), self._variables)
        ids: list[int] = []
        for piece, image in zip_longest(text.split(MARKS[0]), images):
            ids += self._vocabulary.encode(piece)
            if image is not None:
                seed = xxhash.xxh3_64_intdigest(image)
                ids += [self._vocabulary.size + (seed + n) % 2**30 for n in range(IMAGE_TOKENS)]
        return ids

    def _sequence(
        self, prompt: list[int], body: Body, adapter: str | None, script: list[int] | None, copy: int
    ) -> SequenceRequest:
        context, left = self._options.context_tokens, self._options.context_tokens - len(prompt)
        limits = [body[name] for name in MAX_TOKENS if body.get(name) is not None]
        max_tokens: int = limits[0] if limits else max(1, left)
        if left < 0:
            raise BadRequest(
                f"This model's maximum context length is {context} tokens. However, your prompt contains at least "
                f"{context + 1} input tokens, which exceeds this limit even without any output tokens. Please reduce "
                f"the length of the input prompt. (parameter=input_tokens, value={context + 1})",
                param="input_tokens",
            )
        if max_tokens > left:
            raise BadRequest(
                f"This model's maximum context length is {context} tokens. However, you requested {max_tokens} output "
                f"tokens and your prompt contains {len(prompt)} input tokens.",
                param="input_tokens",
            )
        natural = max(self._options.answer_tokens, body.get("min_tokens") or 0)
        return SequenceRequest(
            token_ids=prompt,
            max_tokens=max_tokens,
            natural_tokens=None if body.get("ignore_eos") else natural,
            script=script,
            adapter=adapter,
            salt=body.get("cache_salt") if self._options.prefix_caching else uuid.uuid4().hex,  # off: no hits
            seed=(body.get("seed") or 0) + copy,
            greedy=body.get("temperature") == 0,
        )


def list_images(messages: list[Any]) -> list[bytes]:
    """Return the placeholder of each image of a chat, in order. Raises BadRequest for an image given by address,
    because the emulator fetches nothing.
    """
    parts = [part for message in messages if isinstance(message.get("content"), list) for part in message["content"]]
    images = [part["image_url"]["url"] for part in parts if isinstance(part, dict) and part["type"] == "image_url"]
    if any(not image.startswith("data:image/") for image in images):
        raise BadRequest("the image cannot be fetched", param="messages")
    return [image.encode() for image in images]


def _mark_images(message: dict[str, Any], in_front: bool) -> dict[str, Any]:
    mark = {"type": "text", "text": MARKS[0]}
    parts = [mark if part["type"] == MEDIA else part for part in message["content"]]
    return message | {"content": sorted(parts, key=lambda part: part is not mark) if in_front else parts}


def _replace_special(value: Any, olds: Sequence[str], news: Sequence[str]) -> Any:
    """Return a JSON value with `olds` replaced by `news` in all strings."""
    if isinstance(value, str):
        for old, new in zip(olds, news, strict=True):
            value = value.replace(old, new)
        return value
    if isinstance(value, dict):
        return {name: _replace_special(member, olds, news) for name, member in value.items()}
    return [_replace_special(member, olds, news) for member in value] if isinstance(value, list) else value


def read_prompt_token_ids(options: EngineOptions, faults: EngineFaults, body: Body) -> list[int] | None:
    """Return the prompt's token ids in a chat. None if the chat's messages must be rendered.

    As in vLLM's renderers/online_renderer.py (`_reused_prompt_token_ids`): engines before 0.32 do not read the
    ids, and no engine reads them, valid or not, when it needs the messages, to echo them or for their media. Raises
    BadRequest for ids that are not token ids.
    """
    params = body.get("kv_transfer_params")
    ids = params.get("prompt_token_ids") if isinstance(params, dict) else None
    if ids is None or faults.ignore_ids or options.release < IDS_VERSION:
        return None
    if body.get("echo") or has_media(normalise(body["messages"]) or []):
        return None
    if faults.refuse_ids:
        raise BadRequest(f"Token id {ids[0]} is out of vocabulary (parameter={IDS_PARAMETER})", param=IDS_PARAMETER)
    if not isinstance(ids, list) or not ids or any(type(id) is not int or id < 0 for id in ids):
        message = "`kv_transfer_params['prompt_token_ids']` must be a non-empty list of non-negative integers."
        raise BadRequest(f"{message} (parameter={IDS_PARAMETER})", param=IDS_PARAMETER)
    return ids


def make_example(schema: Any, depth: int = 8) -> Any:
    """Return a small value that fits a JSON Schema, to pass to a tool that must be called.

    The value has the first of alternatives and every property of an object; `$ref` is not followed.
    """
    if not isinstance(schema, dict) or depth == 0:
        return None
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    for alternatives in ("anyOf", "oneOf", "allOf"):
        if schema.get(alternatives):
            return make_example(schema[alternatives][0], depth - 1)
    kind = schema.get("type", "object")
    if isinstance(kind, list):
        kind = kind[0]
    if kind == "object":
        return {name: make_example(inner, depth - 1) for name, inner in schema.get("properties", {}).items()}
    if kind == "array":
        return [make_example(schema.get("items", {"type": "string"}), depth - 1)]
    return SCALARS.get(kind)


def _read_forced_tool(body: Body) -> ForcedTool | None:
    """Return the call that `tool_choice` demands in any of the three dialects, with example arguments."""
    choice, tools = body.get("tool_choice"), body.get("tools") or []
    name = _read_tool_name(choice)
    if not tools or not (name or choice == "required" or (isinstance(choice, dict) and choice.get("type") == "any")):
        return None
    functions = [tool.get("function", tool) for tool in tools]
    function = next((f for f in functions if name in (None, f.get("name"))), None)
    if function is None:
        raise BadRequest(f"tool_choice names {name!r}, which is not in tools", param="tool_choice")
    schema = function.get("parameters") or function.get("input_schema") or {}
    return ForcedTool(function["name"], json.dumps(make_example(schema)), name is not None)


def _read_tool_name(choice: object) -> str | None:
    if not isinstance(choice, dict) or choice.get("type") not in ("function", "tool"):
        return None
    name: str | None = choice.get("function", choice).get("name")
    return name
