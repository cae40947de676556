"""Base of the four answer formats: the facts that an answer reports, and when it reports them.

    greeting   at once, before anything is computed
    opening    with the first token
    piece      per token
    closing    after the last
    whole      the complete answer, in place of all the above, without streaming

The formats are in openai_shapes.py, responses.py and messages.py. They match vLLM 0.32's answers field by field,
checked against recordings.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from router.lab.emulator.request_params import RequestParams
from router.lab.simulator.engine_types import Finish

FINGERPRINT = "vllm-0.32.0-emulated"
DONE = b"data: [DONE]\n\n"

encode = msgspec.json.Encoder().encode


class AnswerFacts(NamedTuple):
    """Facts about one answer that are known before its first token."""

    id: str  # unprefixed
    created: int  # seconds since the epoch
    params: RequestParams
    details: bool  # the engine reports cached tokens


class AnswerUsage(NamedTuple):
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    def and_token(self, cached_tokens: int) -> AnswerUsage:
        """Return the usage with one token more, of a choice with `cached_tokens`; the best choice counts."""
        return AnswerUsage(self.prompt_tokens, self.completion_tokens + 1, max(self.cached_tokens, cached_tokens))


@dataclass(slots=True)
class ChoiceText:
    """The tokens and text of one choice so far."""

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


class AnswerShape(ABC):
    """Builder of one answer: turns facts, tokens and usage into the bytes and values of its format."""

    def __init__(self, facts: AnswerFacts) -> None:
        self._facts = facts
        self._params = facts.params

    def greeting(self) -> bytes:
        return b""

    def opening(self, usage: AnswerUsage) -> bytes:
        return b""

    @abstractmethod
    def piece(self, piece: TokenPiece) -> bytes: ...

    @abstractmethod
    def closing(self, choices: list[ChoiceText], usage: AnswerUsage) -> bytes: ...

    @abstractmethod
    def whole(self, choices: list[ChoiceText], usage: AnswerUsage) -> dict[str, Any]: ...


def sse_data(value: object) -> bytes:
    """Return a server-sent event without a name."""
    return b"data: " + encode(value) + b"\n\n"


def sse_event(name: str, value: object) -> bytes:
    """Return a named server-sent event."""
    return b"event: " + name.encode() + b"\n" + sse_data(value)
