"""Which streamed chats and completions another engine can continue when the first one fails in the middle.

The next engine gets the prompt's token ids and those of the answer so far as its prompt
(`backends/vllm/continuation.py`). So a request is refused if an engine keeps state of the answer that these ids do
not rebuild:

    grammar            guided decoding, structured outputs and forced tools: the grammar would begin anew
    several answers    `n`, `best_of`, beam search: one list of ids describes one answer
    random state       a `seed`: the next engine's random numbers begin anew (temperature 0 draws none)
    penalties          presence and frequency penalties count the answer's tokens, not the prompt's
    text not sent yet  `stop` strings: the engine holds back text that could be the beginning of one. At temperature
                       0 the next engine repeats it (`prompt/answer_tail.py`); not beside tools, whose parser holds
                       text too
    positions          `logprobs` have offsets into the text; usage in every chunk counts from the seam
    the prompt         media, embeddings, `echo`, `suffix`, truncation: the ids are not the whole prompt

A field that is not listed here is refused as well: it may be any of these in an engine newer than this list.
Source: vLLM 0.32 (sampling_params.py, v1/engine/detokenizer.py, chat_completion/protocol.py). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw

from router.prompt.answer_tail import STOP_CHARS, StopStrings
from router.prompt.api.fields import Part
from router.prompt.body_rewrite import UNREADABLE
from router.prompt.prompt import Endpoint

Uncontinuable = Literal[
    "off",
    "opted_out",
    "endpoint",
    "several_answers",
    "beam_search",
    "guided",
    "forced_tool",
    "seed",
    "penalties",
    "stop_strings",
    "logprobs",
    "usage_per_chunk",
    "prompt",
    "transfer",
    "unknown_field",
]
"""Why an answer cannot be continued, as determined from its request; `off`: no memory is configured for
continuation, the policy has `continuation: false`, or the answer is not a stream.
"""

PLAIN_FIELDS = (
    *("min_tokens", "ignore_eos", "stop_token_ids", "top_p", "top_k", "min_p", "repetition_penalty", "length_penalty"),
    *("logit_bias", "allowed_token_ids", "skip_special_tokens", "spaces_between_special_tokens"),
    *("request_id", "safety_identifier", "prompt_cache_key", "service_tier", "store"),
    *("parallel_tool_calls", "include_reasoning", "add_special_tokens", "add_generation_prompt"),
    *("continue_final_message", "chat_template", "chat_template_kwargs", "documents", "reasoning_effort"),
)
"""Fields that change the prompt, or each token by itself. Fields that are read for routing are not in this list."""

_NOTHING = frozenset((b"null", b"false", b"0", b"0.0", b"[]", b"{}", b'""'))
_REFUSED: dict[str, Uncontinuable] = {
    "use_beam_search": "beam_search",
    "structured_outputs": "guided",
    "guided_json": "guided",
    "guided_regex": "guided",
    "guided_choice": "guided",
    "guided_grammar": "guided",
    "structural_tag": "guided",
    "presence_penalty": "penalties",
    "frequency_penalty": "penalties",
    "bad_words": "penalties",
    "logprobs": "logprobs",
    "prompt_logprobs": "logprobs",
    "echo": "prompt",
    "suffix": "prompt",
    "truncate_prompt_tokens": "prompt",
    "prompt_embeds": "prompt",
    "kv_transfer_params": "transfer",
}
"""The reason for refusing each field, unless it is empty, false or 0."""

CHECKED_FIELDS = (
    *_REFUSED,
    *("n", "best_of", "seed", "top_logprobs", "stream_options", "response_format", "tools", "tool_choice"),
    *("stop", "include_stop_str_in_output"),
)
"""Fields that determine whether an answer can be continued."""

_MEDIA_TYPES = (b'"image_url"', b'"input_image"', b'"input_audio"', b'"audio_url"', b'"video_url"', b'"image_pil"')
_ENGINE_TOOLS = b'"mcp"', b'"code_interpreter"', b'"web_search_preview"', b'"container"'  # vLLM's


def find_refusal(
    endpoint: Endpoint, checked: Mapping[str, Any] | None, prompt: Part = UNSET, temperature: Part = UNSET
) -> Uncontinuable | None:
    """Return why the answer to a streamed request cannot be continued; None if it can be. `checked`: the request's
    `CHECKED_FIELDS` as `FieldReader.read_checked` returns them; `prompt`: the prompt of a completion.
    """
    if endpoint not in (Endpoint.CHAT, Endpoint.COMPLETIONS):
        return "endpoint"
    if checked is None:
        return "unknown_field"
    if isinstance(prompt, Raw) and _is_many(prompt):
        return "several_answers"
    greedy = isinstance(temperature, Raw) and bytes(temperature) in (b"0", b"0.0")
    for name, field in checked.items():
        raw = field if isinstance(field, Raw) else Raw(msgspec.json.encode(field))
        if (refusal := _refuse_field(name, raw, greedy)) is not None:
            return refusal
    stop = read_stop(checked)
    return "stop_strings" if stop is not None and (stop.chars > STOP_CHARS or "tools" in checked) else None


def read_stop(checked: Mapping[str, Any]) -> StopStrings | None:
    """Return the facts about a request's stop strings; None if it has none."""
    strings = _decode(checked.get("stop"))
    strings = [strings] if isinstance(strings, str) else strings
    if not isinstance(strings, list) or not any(strings):
        return None
    chars = max((len(string) for string in strings if isinstance(string, str)), default=0)
    return StopStrings(chars, bool(_decode(checked.get("include_stop_str_in_output"))))


def _decode(field: Any) -> Any:
    """Return the value of a field; None if it is missing, or not valid."""
    try:
        return msgspec.json.decode(field) if isinstance(field, Raw) else None
    except UNREADABLE:
        return None


def _refuse_field(name: str, field: Raw, greedy: bool) -> Uncontinuable | None:
    short = bytes(memoryview(field)[:16])
    if short in _NOTHING:
        return None
    if name in ("n", "best_of"):
        return None if short == b"1" else "several_answers"
    if name in ("seed", "stop"):
        return None if greedy else "seed" if name == "seed" else "stop_strings"
    if name == "include_stop_str_in_output":
        return None
    if name == "top_logprobs":  # refused with `logprobs`, and without effect otherwise
        return None
    if name == "stream_options":
        return (
            "usage_per_chunk" if _option(field, "include_usage") and _option(field, "continuous_usage_stats") else None
        )
    if name == "response_format":
        return None if _option(field, "type") == "text" else "guided"
    if name == "tools":
        return "guided" if b'"strict"' in bytes(field) else None  # calls may be decoded by a grammar
    if name == "tool_choice":
        return None if short in (b'"auto"', b'"none"') else "forced_tool"
    return _REFUSED[name]


def _option(field: Raw, name: str) -> Any:
    """Return the option `name` of an object; None if it has none."""
    options = _decode(field)
    return options.get(name) if isinstance(options, dict) else None


def has_media(body: bytes) -> bool:
    """Return whether a message of a chat may have a part that is not text: such a chat is not continued
    (`multimodal`). Called only when an engine has failed or keeps a request waiting, as a body may be large. In text
    that quotes such a type, the quotes are escaped.
    """
    return any(kind in body for kind in _MEDIA_TYPES)


def names_engine_tools(body: bytes) -> bool:
    """Return whether a request of `/v1/responses` may name tools that the engine runs itself: answering it twice may do
    something twice. Called only when an engine is stuck.
    """
    return any(kind in body for kind in _ENGINE_TOOLS)


def _is_many(prompt: Raw) -> bool:
    """Return whether a completion's prompt is a list of prompts."""
    start = bytes(memoryview(prompt)[:64])
    return start.startswith(b"[") and start[1:].lstrip()[:1] in (b'"', b"[", b"")
