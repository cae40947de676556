"""`/v1/messages`, Anthropic's format, as vLLM answers it (anthropic/serving.py).

vLLM makes these from its own chat chunks: the prompt's tokens are told at the start, the cached ones only at the end,
and `input_tokens` leaves the cached ones out.
"""

from __future__ import annotations

import json
from typing import Any

from router.testbed.emulator.answer_shape import AnswerFacts, AnswerUsage, ChoiceText, TokenPiece, sse_event


class MessageShape:
    def __init__(self, facts: AnswerFacts) -> None:
        self._facts = facts
        self._order = facts.order
        self._open = False  # a content block is
        self._message: dict[str, Any] = {
            "id": f"chatcmpl-{facts.id}",
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": self._order.model,
            "stop_reason": None,
            "stop_sequence": None,
        }

    def greeting(self) -> bytes:
        return b""

    def opening(self, usage: AnswerUsage) -> bytes:
        told = {"input_tokens": usage.prompt_tokens, "output_tokens": 0}
        return sse_event("message_start", {"type": "message_start", "message": self._message | {"usage": told}})

    def piece(self, piece: TokenPiece) -> bytes:
        if not piece.text:
            return b""
        tool = self._order.tool
        begun = b""
        if not self._open:
            self._open = True
            block = {"type": "text", "text": ""} if tool is None else self._tool_use({})
            begun = sse_event(
                "content_block_start", {"type": "content_block_start", "index": 0, "content_block": block}
            )
        delta = (
            {"type": "text_delta", "text": piece.text}
            if tool is None
            else {"type": "input_json_delta", "partial_json": piece.text}
        )
        return begun + sse_event("content_block_delta", {"type": "content_block_delta", "index": 0, "delta": delta})

    def closing(self, said: list[ChoiceText], usage: AnswerUsage) -> bytes:
        stop = sse_event("content_block_stop", {"type": "content_block_stop", "index": 0}) if self._open else b""
        delta = {"stop_reason": self._stop_reason(said[0]), "stop_sequence": None}
        told = {"type": "message_delta", "delta": delta, "usage": self._usage(usage)}
        return stop + sse_event("message_delta", told) + sse_event("message_stop", {"type": "message_stop"})

    def whole(self, said: list[ChoiceText], usage: AnswerUsage) -> dict[str, Any]:
        block = {"type": "text", "text": said[0].text}
        if self._order.tool is not None:
            block = self._tool_use(_read(said[0].text))
        answer = self._message | {"content": [block], "stop_reason": self._stop_reason(said[0])}
        del answer["stop_sequence"]  # left out when null
        return answer | {"usage": self._usage(usage)}

    def _tool_use(self, arguments: object) -> dict[str, Any]:
        tool = self._order.tool
        assert tool is not None
        return {"type": "tool_use", "id": f"chatcmpl-tool-{self._facts.id}", "name": tool.name, "input": arguments}

    def _stop_reason(self, said: ChoiceText) -> str:
        if said.finish == "length":
            return "max_tokens"
        return "end_turn" if self._order.tool is None else "tool_use"

    def _usage(self, usage: AnswerUsage) -> dict[str, int]:
        told = {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens}
        if self._facts.details:
            told["input_tokens"] -= usage.cached_tokens
            told["cache_read_input_tokens"] = usage.cached_tokens
        return told


def _read(arguments: str) -> object:
    """A call that was cut short has no arguments."""
    try:
        return json.loads(arguments)
    except ValueError:
        return {}
