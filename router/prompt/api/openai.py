"""`/v1/chat/completions` and `/v1/completions`: from body fields to the source of the prompt's token ids.

Follows vLLM 0.32 (chat_completion/protocol.py, completion/protocol.py, renderers/online_renderer.py): which request
fields become template variables, how tools are dumped before a template sees them, and which requests cannot be
matched by prefix at all. Besides the source, each function returns the fields for the engine's own `/tokenize`, so
that the engine renders the same prompt.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, Raw

from router.errors import BadRequest
from router.prompt.api.field_values import is_present, require, short_value, starts_with, value, whole_number
from router.prompt.api.fields import BodyFields, Part
from router.prompt.api.known_messages import read_messages
from router.prompt.api.messages import has_media, normalise
from router.prompt.body_rewrite import UNREADABLE
from router.prompt.known_prompt import FindKnown, ReadMessages
from router.prompt.prompt import Chat, GivenChat, Ids, PromptFields, Text, UnknownIds

TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
_TOKEN_IDS: msgspec.json.Decoder[list[Any]] = msgspec.json.Decoder(list[TokenId])
_TEXTS: msgspec.json.Decoder[list[Any]] = msgspec.json.Decoder(list[str])
_TOKEN_LISTS: msgspec.json.Decoder[list[Any]] = msgspec.json.Decoder(list[list[TokenId]])
_LIST: msgspec.json.Decoder[list[Raw]] = msgspec.json.Decoder(list[Raw])
_MANY: Final = re.compile(rb'\[\s*["\[]')  # begins a list of prompts, not one of token ids
MAX_ANSWERS: Final = 1_000_000  # engines allow fewer
MAX_VARIABLES = 64
_HF_ARGUMENTS = {"tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict", "conversation"}
JINJA_GLOBALS = frozenset(("range", "dict", "lipsum", "cycler", "joiner", "namespace"))  # engines drop these variables
_NOT_VARIABLES = (
    _HF_ARGUMENTS
    | JINJA_GLOBALS
    | {
        *("tokenizer_kwargs", "return_assistant_tokens_mask"),
        *("add_generation_prompt", "continue_final_message", "messages"),
    }
)  # parameters of Hugging Face's function or of the request itself, never template variables


class _AnswerFields(BodyFields):
    """Fields by which one prompt gets several answers."""

    n: Part = UNSET
    best_of: Part = UNSET
    use_beam_search: Part = UNSET


class ChatFields(_AnswerFields):
    """Fields of a chat completion's body."""

    stream_options: Part = UNSET
    messages: Part = UNSET
    tools: Part = UNSET
    tool_choice: Part = UNSET
    chat_template: Part = UNSET
    chat_template_kwargs: Part = UNSET
    documents: Part = UNSET
    reasoning_effort: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    truncate_prompt_tokens: int | None = None
    prompt_logprobs: int | None = None
    echo: bool = False
    return_prompt_text: Part = UNSET


class CompletionFields(_AnswerFields):
    """Fields of a completion's body."""

    stream_options: Part = UNSET
    prompt: Part = UNSET
    prompt_embeds: Part = UNSET
    suffix: str | None = None
    add_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    prompt_logprobs: int | None = None
    logprobs: int | None = None
    echo: bool | None = False


def has_several_answers(fields: ChatFields | CompletionFields) -> bool:
    """Return whether the engine computes several answers to the prompt, which share its blocks."""
    if fields.n is UNSET and fields.best_of is UNSET and fields.use_beam_search is UNSET:
        return False
    counts = short_value(fields.n), short_value(fields.best_of)
    return any(count not in (None, 1, "1") for count in counts) or bool(short_value(fields.use_beam_search))


def count_answers(fields: ChatFields | CompletionFields) -> int:
    """Return how many answers the engine makes: for each prompt of a list, the number in `n` or `best_of` (of
    answers or beams). A value that is not a number counts as 1: the engine refuses it.
    """
    count = 1
    if fields.n is not UNSET or fields.best_of is not UNSET:
        count = max(1, _read_count(fields.n), _read_count(fields.best_of))
    if (
        isinstance(fields, CompletionFields)
        and isinstance(fields.prompt, Raw)
        and _MANY.match(memoryview(fields.prompt))
    ):
        count *= len(_LIST.decode(fields.prompt))
    return min(count, MAX_ANSWERS)


def _read_count(part: Part) -> int:
    count = short_value(part)
    if isinstance(count, str) and count.isascii() and count.isdigit():  # engines take numbers in text
        count = int(count)
    return whole_number(count) or 0


def check_chat(fields: ChatFields) -> None:
    """Raise BadRequest for a missing or mistyped prompt field."""
    require(fields.messages, "messages", b"[", "an array")


def check_completion(fields: CompletionFields) -> None:
    """Raise BadRequest for a missing or mistyped prompt field."""
    if not is_present(fields.prompt_embeds):
        require(fields.prompt, "prompt", b'"[', "a string or an array")


def read_chat(fields: ChatFields, find: FindKnown | None = None) -> PromptFields:
    """Return the prompt of a chat completion; `find`: see `PromptReader`."""
    if is_present(fields.chat_template):
        return unknown_ids("client_template")
    if fields.truncate_prompt_tokens is not None:
        return unknown_ids("truncated")
    if fields.prompt_logprobs is not None or fields.echo:  # echo requests prompt logprobs, which read no cache
        return unknown_ids("prompt_logprobs")
    client = value(fields.chat_template_kwargs, "chat_template_kwargs")
    kwargs = template_kwargs(client, fields.reasoning_effort, value(fields.documents, "documents"))
    tools = template_tools(value(fields.tools, "tools"))
    read = None if find is None else read_messages(fields.messages, find)
    messages = value(fields.messages, "messages") if read is None else []
    declined = short_value(fields.tool_choice) == "none"
    ends = fields.add_generation_prompt, fields.continue_final_message
    request = ChatRequest(
        messages,
        tools,
        kwargs,
        *ends,
        read=read,
        tools_declined=declined,
        effort=fields.reasoning_effort,
        has_variables=client is not None,
    )
    return chat_prompt(request, add_special_tokens=fields.add_special_tokens)


def read_completion(fields: CompletionFields) -> PromptFields:
    """Return the prompt of a completion. Raises BadRequest for a malformed `prompt`."""
    if is_present(fields.prompt_embeds):
        return unknown_ids("prompt_embeds")
    if fields.suffix is not None:
        return unknown_ids("suffix")
    if fields.truncate_prompt_tokens is not None:
        return unknown_ids("truncated")
    if fields.prompt_logprobs is not None or (fields.echo and fields.logprobs is not None):
        return unknown_ids("prompt_logprobs")
    if starts_with(fields.prompt, b'"'):
        return _text(value(fields.prompt, "prompt"), fields.add_special_tokens)
    prompts = _prompts(fields.prompt)
    if prompts and isinstance(prompts[0], int):
        return PromptFields(Ids(prompts), {})
    if len(prompts) != 1:
        return unknown_ids("many_prompts" if prompts else "empty")
    if isinstance(prompts[0], str):
        return _text(prompts[0], fields.add_special_tokens)
    return PromptFields(Ids(prompts[0]), {})


class ChatRequest(NamedTuple):
    """A requested chat before normalising. `tools` or `kwargs` is `UnknownIds` if the engine will refuse it."""

    messages: list[Any]
    tools: list[dict[str, Any]] | UnknownIds | None
    kwargs: dict[str, Any] | UnknownIds
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    read: ReadMessages | None = None  # replaces `messages`
    tools_declined: bool = False
    effort: str | None = None  # these three: see `GivenChat`
    items: list[Any] | None = None
    has_variables: bool = False


def chat_prompt(
    request: ChatRequest, *, add_special_tokens: bool = False, validated: bool = True, anthropic: bool = False
) -> PromptFields:
    """Return the chat of `request` in both forms: to be rendered by the router, or by the engine."""
    if isinstance(request.kwargs, UnknownIds):
        return PromptFields(request.kwargs, {})
    if isinstance(request.tools, UnknownIds):
        return PromptFields(request.tools, {})
    read = request.read
    messages = normalise(request.messages, validated=validated) if read is None else read.messages
    if messages is None:
        return unknown_ids("content")
    source = Chat(
        messages=messages,
        tools=request.tools,
        template_kwargs=request.kwargs,
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
        add_special_tokens=add_special_tokens,
        has_media=read is None and has_media(messages),
        anthropic=anthropic,
        read=read,
        tools_declined=request.tools_declined and request.tools is not None,
        given=None if read is not None else _given(request),
    )
    if read is not None:
        return PromptFields(source, {})
    remote = {
        "messages": request.messages,
        "add_generation_prompt": request.add_generation_prompt,
        "continue_final_message": request.continue_final_message,
        "add_special_tokens": add_special_tokens,
        "chat_template_kwargs": request.kwargs,
    }
    return PromptFields(source, remote if request.tools is None else remote | {"tools": request.tools})


def _given(request: ChatRequest) -> GivenChat:
    return GivenChat(request.messages, request.items, request.effort, request.has_variables)


def template_kwargs(client: Any, reasoning_effort: str | None, documents: Any = None) -> dict[str, Any] | UnknownIds:
    """Return the template variables; None and "auto" count as not given. Raises BadRequest for a `client` that is
    not an object.
    """
    if client is None:
        client = {}
    if not isinstance(client, dict):
        raise BadRequest("`chat_template_kwargs` must be an object", param="chat_template_kwargs")
    if client.get("chat_template") is not None:
        return UnknownIds("client_template")
    if len(client) > MAX_VARIABLES:
        return UnknownIds("content")
    extra: dict[str, Any] = {"documents": documents, "reasoning_effort": reasoning_effort}
    if reasoning_effort is not None and "enable_thinking" not in client:
        extra["enable_thinking"] = reasoning_effort != "none"
    extra = {k: v for k, v in extra.items() if v is not None and v != "auto"}
    return {k: v for k, v in (client | extra).items() if v is not None and v != "auto" and k not in _NOT_VARIABLES}


def template_tools(tools: Any) -> list[dict[str, Any]] | UnknownIds | None:
    """Return tools as the template sees them: known fields in a fixed order, None for missing ones. No tools are
    not the same as an empty list, which older vLLM versions accept and pass to the template, and newer ones refuse.
    """
    if tools is None:
        return None
    if not isinstance(tools, list):
        return UnknownIds("tools")
    converted = []
    for tool in tools:
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            return UnknownIds("tools")
        converted.append(template_tool(function, tool.get("defer_loading")))
    return converted


def template_tool(function: dict[str, Any], defer_loading: Any = None) -> dict[str, Any]:
    """Return one function tool as the template sees it."""
    dumped = {key: function.get(key) for key in ("name", "description", "parameters")}
    if function.get("strict") is not None:
        dumped["strict"] = function["strict"]
    deferred = function.get("defer_loading")
    if (deferred if deferred is not None else defer_loading) is not None:
        dumped["defer_loading"] = deferred if deferred is not None else defer_loading
    tool = {"type": "function", "function": dumped}
    return tool if defer_loading is None else tool | {"defer_loading": defer_loading}


def unknown_ids(reason: str) -> PromptFields:
    """Return a prompt without token ids, for this reason."""
    return PromptFields(UnknownIds(reason), {})


def _text(text: str, add_special_tokens: bool) -> PromptFields:
    return PromptFields(Text(text, add_special_tokens), {"prompt": text, "add_special_tokens": add_special_tokens})


def _prompts(part: Part) -> list[Any]:
    """Return `prompt` as an array of token ids, strings or arrays of token ids. Raises BadRequest for anything
    else.
    """
    if not isinstance(part, msgspec.Raw):
        return []
    for decoder in (_TOKEN_IDS, _TEXTS, _TOKEN_LISTS):
        try:
            return decoder.decode(part)
        except UNREADABLE:
            continue
    raise BadRequest("`prompt` must be a string, token ids, or an array of either", param="prompt")
