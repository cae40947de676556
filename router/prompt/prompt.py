"""What the router understands of a request: just what routing needs, nothing else.

A `Prompt` is read once from the body (read.py, which asks openai.py, anthropic.py or responses.py) and carries the
body on, to be forwarded as it came unless a field had to change (edge.py). Its `source` says how its token ids come
to be; rendering and tokenising are the business of `router/prompt/tokenization`.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

import msgspec


class Endpoint(Enum):
    """The four endpoints whose prompts are matched against the caches, and the rest, placed by load."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"
    OTHER = "other"


MEDIA = "media"  # the type of a content part that stands for an image, a sound or a film


class Chat(NamedTuple):
    """Messages for the chat template, normalised exactly as vLLM normalises them before rendering.

    Content is always a list of parts, `{"type": "text", "text": ...}` for the most: whether a template sees that list
    or one string is the template's own matter (`prompt/tokenization/chat_template.py`). `cut` is True where a part is
    `MEDIA`: only the text before the first one can be known.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    template_kwargs: dict[str, Any]
    add_generation_prompt: bool
    continue_final_message: bool
    add_special_tokens: bool
    has_media: bool
    # from /v1/messages, where vLLM bends two things to the template: see prompt/tokenization/chat_template.py
    anthropic: bool = False


class Text(NamedTuple):
    """A plain prompt of `/v1/completions`."""

    text: str
    add_special_tokens: bool


class Ids(NamedTuple):
    """A prompt that came as token ids."""

    ids: list[int]  # each in [0, 2**32)


class UnknownIds(NamedTuple):
    """Not matched by cache, and why (a closed set of short words: it is a metric's label)."""

    reason: str


Source = Chat | Text | Ids | UnknownIds


class Prompt(msgspec.Struct):
    """One request as the router understands it.

    `body` is what is forwarded: already stripped, with usage asked for where `hide_usage` is True.
    """

    endpoint: Endpoint
    path: str
    model: str | None  # None only on Endpoint.OTHER
    body: bytes
    source: Source
    stream: bool = False
    hide_usage: bool = False  # we asked for the usage chunk, the client did not: drop it
    salt: str | None = None
    session: str | None = None
    previous_response_id: str | None = None
    remote_fields: dict[str, Any] = {}  # what POST /tokenize needs beside model, to give the same ids
    priority: int | None = None  # lower is more urgent, as in vLLM
    output_tokens: int | None = None  # the client's cap on its answer
    returns_prompt_text: bool = False  # its answer is to quote the prompt as text
    ttft_ms: float | None = None  # the objectives it asks for: time to first token, and per token after it
    tpot_ms: float | None = None
