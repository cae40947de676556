"""`/v1/messages`, Anthropic's format, as vLLM answers it (anthropic/serving.py).

vLLM makes these answers from its own chat chunks: prompt tokens are reported at the start, cached tokens only at
the end, where `input_tokens` excludes them.
"""

from __future__ import annotations

import json
from typing import Any

from router.lab.emulator.answer_shape import (
    AnswerFacts,
    AnswerShape,
    AnswerUsage,
    ChoiceText,
    TokenPiece,
    sse_event,
)


class MessageShape(AnswerShape):
    def __init__(self, facts: AnswerFacts) -> None:
        super().__init__(facts)
        self._open = False  # a content block has begun
        self._message: dict[str, Any] = {
            "id": f"chatcmpl-{facts.id}",
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": self._params.model,
            "stop_reason": None,
            "stop_sequence": None,
        }

    def opening(self, usage: AnswerUsage) -> bytes:
        counts = {"input_tokens": usage.prompt_tokens, "output_tokens": 0}
        return _event("message_start", message=self._message | {"usage": counts})

    def piece(self, piece: TokenPiece) -> bytes:
        if not piece.text:
            return b""
        tool = self._params.tool
        start = b""
        if not self._open:
            self._open = True
            block = {"type": "text", "text": ""} if tool is None else self._tool_use({})
            start = _event("content_block_start", index=0, content_block=block)
        kind, name = ("text_delta", "text") if tool is None else ("input_json_delta", "partial_json")
        delta = {"type": kind, name: piece.text}
        return start + _event("content_block_delta", index=0, delta=delta)

    def closing(self, choices: list[ChoiceText], usage: AnswerUsage) -> bytes:
        stop = _event("content_block_stop", index=0) if self._open else b""
        delta = {"stop_reason": self._stop_reason(choices[0]), "stop_sequence": None}
        return stop + _event("message_delta", delta=delta, usage=self._usage(usage)) + _event("message_stop")

    def whole(self, choices: list[ChoiceText], usage: AnswerUsage) -> dict[str, Any]:
        block = {"type": "text", "text": choices[0].text}
        if self._params.tool is not None:
            block = self._tool_use(_parse_arguments(choices[0].text))
        answer = self._message | {"content": [block], "stop_reason": self._stop_reason(choices[0])}
        del answer["stop_sequence"]  # omitted when null
        return answer | {"usage": self._usage(usage)}

    def _tool_use(self, arguments: object) -> dict[str, Any]:
        tool = self._params.tool
        assert tool is not None
        return {"type": "tool_use", "id": f"chatcmpl-tool-{self._facts.id}", "name": tool.name, "input": arguments}

    def _stop_reason(self, choice: ChoiceText) -> str:
        if choice.finish == "length":
            return "max_tokens"
        return "end_turn" if self._params.tool is None else "tool_use"

    def _usage(self, usage: AnswerUsage) -> dict[str, int]:
        counts = {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens}
        if self._facts.details:
            counts["input_tokens"] -= usage.cached_tokens
            counts["cache_read_input_tokens"] = usage.cached_tokens
        return counts


def _event(type: str, **fields: object) -> bytes:
    return sse_event(type, {"type": type} | fields)


def _parse_arguments(text: str) -> object:
    """Return the arguments of a tool call; {} if the call was cut short."""
    try:
        return json.loads(text)
    except ValueError:
        return {}
