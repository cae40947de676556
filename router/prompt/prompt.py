"""A request as the router understands it: the fields that routing needs.

A `Prompt` is read once from the body (`api/parse.py`) and carries the body on, to be forwarded unchanged unless a field
had to be edited (`body_rewrite.py`). Its `source` says how to get its token ids; `router/prompt/tokenization` renders
and tokenises it.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

import msgspec


class Endpoint(Enum):
    """The four endpoints whose prompts are matched against the caches, and `OTHER`, placed by load."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"
    OTHER = "other"


MEDIA = "media"  # type of a content part that stands for an image, audio or video


class Chat(NamedTuple):
    """Messages for the chat template, normalised exactly as vLLM normalises them before rendering.

    Content is always a list of parts, mostly `{"type": "text", "text": ...}`; whether a template sees that list or one
    string depends on the template (`prompt/tokenization/chat_template.py`). `has_media`: a part is `MEDIA`, so only the
    text before the first one can be known.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    template_kwargs: dict[str, Any]
    add_generation_prompt: bool
    continue_final_message: bool
    add_special_tokens: bool
    has_media: bool
    # from /v1/messages, where vLLM adapts two things to the template: see prompt/tokenization/chat_template.py
    anthropic: bool = False


class Text(NamedTuple):
    """A plain prompt of `/v1/completions`."""

    text: str
    add_special_tokens: bool


class Ids(NamedTuple):
    """A prompt sent as token ids."""

    ids: list[int]  # each in [0, 2**32)


class UnknownIds(NamedTuple):
    """No token ids, and why (a closed set of short words: it is a metric's label)."""

    reason: str


Source = Chat | Text | Ids | UnknownIds


class Prompt(msgspec.Struct):
    """One request. `body` is what is forwarded: already stripped, and with usage requested where `hide_usage`."""

    endpoint: Endpoint
    path: str
    model: str | None  # None only on Endpoint.OTHER
    body: bytes
    source: Source
    stream: bool = False
    hide_usage: bool = False  # the router asked for the usage chunk, the client did not
    salt: str | None = None
    session: str | None = None
    previous_response_id: str | None = None
    remote_fields: dict[str, Any] = {}  # fields that POST /tokenize needs beside `model`
    priority: int | None = None  # lower is more urgent, as in vLLM
    output_tokens: int | None = None  # the client's limit on the answer
    returns_prompt_text: bool = False  # the answer must contain the prompt as text
    ttft_ms: float | None = None  # requested objectives: time to first token and time per output token
    tpot_ms: float | None = None
