"""What the four answer formats have in common: the facts they tell, and when they tell them.

    greeting   at once, before anything is computed
    opening    with the first token
    piece      per token
    closing    after the last
    whole      instead of all these, without streaming

The formats themselves are in chat.py, completions.py, responses.py and messages.py; they follow vLLM 0.32's own,
field by field, recorded answers included.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import msgspec

from router.testbed.emulator.request_params import RequestParams
from router.testbed.simulator.engine_types import Finish

FINGERPRINT = "vllm-0.32.0-emulated"
DONE = b"data: [DONE]\n\n"

encode = msgspec.json.Encoder().encode


class AnswerFacts(NamedTuple):
    """Of one answer: who, when, to what."""

    id: str  # unprefixed
    created: int  # seconds since the epoch
    order: RequestParams
    details: bool  # the engine tells cached tokens


class AnswerUsage(NamedTuple):
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    def and_token(self, cached_tokens: int) -> AnswerUsage:
        """One token more, of a choice that found so much in the cache; the best of several counts."""
        return AnswerUsage(self.prompt_tokens, self.completion_tokens + 1, max(self.cached_tokens, cached_tokens))


@dataclass(slots=True)
class ChoiceText:
    """One choice, so far."""

    tokens: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    finish: Finish | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)


class TokenPiece(NamedTuple):
    """One token of one choice. An end token has no text."""

    choice: int
    token: int
    text: str
    finish: Finish | None
    usage: AnswerUsage  # so far


class AnswerShape(Protocol):
    def greeting(self) -> bytes: ...
    def opening(self, usage: AnswerUsage) -> bytes: ...
    def piece(self, piece: TokenPiece) -> bytes: ...
    def closing(self, said: list[ChoiceText], usage: AnswerUsage) -> bytes: ...
    def whole(self, said: list[ChoiceText], usage: AnswerUsage) -> dict[str, Any]: ...


def sse_data(value: object) -> bytes:
    """One server-sent event without a name."""
    return b"data: " + encode(value) + b"\n\n"


def sse_event(name: str, value: object) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + encode(value) + b"\n\n"


def usage_json(usage: AnswerUsage, details: bool) -> dict[str, Any]:
    told: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "completion_tokens": usage.completion_tokens,
    }
    if details:
        told["prompt_tokens_details"] = {"cached_tokens": usage.cached_tokens}
    return told


def full_usage_json(usage: AnswerUsage, details: bool) -> dict[str, Any]:
    """As a complete answer has it: nothing left out."""
    told = usage_json(usage, details) | {"completion_tokens_details": None}
    nothing = {"created_cache_tokens": None, "multimodal_tokens": None}
    told["prompt_tokens_details"] = told["prompt_tokens_details"] | nothing if details else None
    return told
