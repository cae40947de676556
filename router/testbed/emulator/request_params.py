"""What a request orders from the engine, read from its body as vLLM reads it.

Prompts are read and rendered by the router's own rooms (`prompt/`, `prompt/tokenization/chat_template.py`): there is
one implementation of vLLM's conversions here, and the tests against real engines are what keeps it honest. This module
adds the fields that matter only to the engine: how many tokens, how many choices, which tool must be called.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from router.clock import Clock
from router.errors import BadRequest, NotFound
from router.prompt.api.parse import ReadOptions, read_prompt
from router.prompt.prompt import Chat, Ids, Source, Text, UnknownIds
from router.prompt.tokenization.chat_template import ChatTemplate, UnrenderableChat
from router.testbed.emulator.disaggregation import DecodeParams, PrefillParams
from router.testbed.emulator.options import EngineFaults, EngineOptions
from router.testbed.emulator.prompt_token_ids import read_prompt_token_ids
from router.testbed.emulator.schema_example import make_example
from router.testbed.emulator.vocabulary import Vocabulary
from router.testbed.simulator.engine_types import SequenceRequest

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
READ_UNCHANGED = ReadOptions(strip_fields=frozenset(), inject_usage=False)
MAX_TOKENS = ("max_completion_tokens", "max_output_tokens", "max_tokens")  # whatever the endpoint calls it
MAX_CHOICES = 64
Body = dict[str, Any]


class ForcedTool(NamedTuple):
    """The call that the answer has to be."""

    name: str
    arguments: str  # JSON
    named: bool  # the client named it, rather than asking for any


class RequestParams(NamedTuple):
    model: str  # as asked for: the base model or an adapter
    body: Body
    requests: list[SequenceRequest]  # one per choice; several prompts: prompt by prompt
    prompt_tokens: int  # of all prompts, each counted once
    tool: ForcedTool | None
    stream: bool
    usage: bool  # a last chunk with usage
    every_usage: bool  # usage on every chunk
    half: PrefillParams | DecodeParams | None = None  # of a pair


class RequestParamsReader:
    """Reads orders for one engine."""

    def __init__(
        self, options: EngineOptions, vocabulary: Vocabulary, clock: Clock, faults: Callable[[], EngineFaults]
    ) -> None:
        self._options = options
        self._faults = faults
        self._vocabulary = vocabulary
        self._adapters = options.adapters()
        self._template = ChatTemplate(vocabulary.config["chat_template"], clock.wall)
        tokens = ("bos_token", "eos_token", "pad_token", "unk_token")
        self._variables = {name: vocabulary.config[name] for name in tokens if name in vocabulary.config}

    def read(self, path: str, raw: bytes, body: Body) -> RequestParams:
        """`body` is `raw`, decoded. Raises BadRequest or NotFound, as the engine would refuse."""
        adapter = self.adapter(body.get("model"))
        prompts = self.prompts(path, raw, body)
        if any(ids and not 0 <= min(ids) <= max(ids) < 2**32 for ids in prompts):
            raise BadRequest("Token ids are out of vocabulary.", param="prompt")
        tool = _forced_tool(body)
        script = None if tool is None else self._vocabulary.encode(tool.arguments)
        copies = body.get("n") or 1
        if not 1 <= copies <= MAX_CHOICES:
            raise BadRequest(f"n must be between 1 and {MAX_CHOICES}, got {copies}.", param="n")
        requests = [self._request(prompt, body, adapter, script, copy) for prompt in prompts for copy in range(copies)]
        stream = bool(body.get("stream"))
        wanted = body.get("stream_options") or {}
        return RequestParams(
            model=body["model"],
            body=body,
            requests=requests,
            prompt_tokens=sum(len(prompt) for prompt in prompts),
            tool=tool,
            stream=stream,
            usage=bool(wanted.get("include_usage")),
            every_usage=bool(wanted.get("include_usage") and wanted.get("continuous_usage_stats")),
        )

    def adapter(self, model: object) -> str | None:
        """The LoRA adapter that a model name stands for; None for the base model. Raises NotFound."""
        if model == self._options.model:
            return None
        if model not in self._adapters:
            raise NotFound(f"The model `{model}` does not exist.", param="model")
        return str(model)

    def prompts(self, path: str, raw: bytes, body: Body) -> list[list[int]]:
        """The token ids of every prompt in it. Raises BadRequest."""
        if path == CHAT and (given := read_prompt_token_ids(self._options, self._faults(), body)) is not None:
            return [given]
        if path == COMPLETIONS and isinstance(body.get("prompt"), list):
            several = body["prompt"]
            if several and not isinstance(several[0], int):
                special = body.get("add_special_tokens", True)
                return [p if isinstance(p, list) else self._vocabulary.encode(p, special=special) for p in several]
        source = read_prompt(path, None, raw, READ_UNCHANGED).source
        return [self.ids(source)]

    def ids(self, source: Source) -> list[int]:
        """Token ids of what the router's own reading understood. Raises BadRequest."""
        match source:
            case Ids(ids):
                return list(ids)
            case Text(text, special):
                return self._vocabulary.encode(text, special=special)
            case Chat():
                return self._chat_ids(source)
            case UnknownIds(reason):
                raise BadRequest(f"the emulated engine takes no such prompt: {reason}")

    def _chat_ids(self, chat: Chat) -> list[int]:
        if chat.cut:
            raise BadRequest(f"{self._options.model} is not a multimodal model", param="messages")
        try:
            text = self._template.render(chat, self._variables)
        except UnrenderableChat as refusal:
            raise BadRequest(str(refusal), param="messages") from None
        return self._vocabulary.encode(text, special=chat.add_special_tokens)

    def _request(
        self, prompt: list[int], body: Body, adapter: str | None, script: list[int] | None, copy: int
    ) -> SequenceRequest:
        context, room = self._options.context_tokens, self._options.context_tokens - len(prompt)
        given = [body[name] for name in MAX_TOKENS if body.get(name) is not None]
        asked: int = given[0] if given else max(1, room)
        if asked < 1:
            raise BadRequest(f"max_tokens must be at least 1, got {asked}.", param="max_tokens")
        if asked > room:
            raise BadRequest(
                f"This model's maximum context length is {context} tokens. However, you requested {asked} output "
                f"tokens and your prompt contains {len(prompt)} input tokens.",
                param="input_tokens",
            )
        natural = max(self._options.answer_tokens, body.get("min_tokens") or 0)
        return SequenceRequest(
            token_ids=prompt,
            max_tokens=asked,
            natural_tokens=None if body.get("ignore_eos") else natural,
            script=script,
            adapter=adapter,
            salt=body.get("cache_salt"),
            seed=(body.get("seed") or 0) + copy,
        )


def _forced_tool(body: Body) -> ForcedTool | None:
    """The call that `tool_choice` demands, in any of the three dialects; its arguments are a specimen of the schema."""
    choice, tools = body.get("tool_choice"), body.get("tools") or []
    named = _chosen_name(choice)
    if not tools or not (named or choice == "required" or (isinstance(choice, dict) and choice.get("type") == "any")):
        return None
    functions = [tool.get("function", tool) for tool in tools]
    function = next((f for f in functions if named in (None, f.get("name"))), None)
    if function is None:
        raise BadRequest(f"tool_choice names {named!r}, which is not in tools", param="tool_choice")
    schema = function.get("parameters") or function.get("input_schema") or {}
    return ForcedTool(function["name"], json.dumps(make_example(schema)), named is not None)


def _chosen_name(choice: object) -> str | None:
    if not isinstance(choice, dict) or choice.get("type") not in ("function", "tool"):
        return None
    name: str | None = choice.get("function", choice).get("name")
    return name
