"""`/v1/chat/completions`, as vLLM answers it (openai/chat_completion/serving.py)."""

from __future__ import annotations

from typing import Any

from router.testbed.emulator.answer_shape import (
    DONE,
    FINGERPRINT,
    AnswerFacts,
    AnswerUsage,
    ChoiceText,
    TokenPiece,
    full_usage_json,
    sse_data,
    usage_json,
)
from router.testbed.simulator.engine_types import Finish


class ChatShape:
    def __init__(self, facts: AnswerFacts) -> None:
        self._facts = facts
        self._order = facts.order
        self._called: set[int] = set()  # choices whose tool call has begun
        self._head = {
            "id": f"chatcmpl-{facts.id}",
            "object": "chat.completion.chunk",
            "created": facts.created,
            "model": self._order.model,
        }

    def greeting(self) -> bytes:
        return b""

    def opening(self, usage: AnswerUsage) -> bytes:
        """A chunk with the role, and no text yet, for every choice."""
        delta = {"role": "assistant", "content": ""}
        ids = {"prompt_token_ids": self._prompt_ids(), "prompt_text": None}
        usage = usage._replace(completion_tokens=0)
        return b"".join(
            self._chunk({"index": choice, "delta": delta, "logprobs": None, "finish_reason": None}, usage, ids)
            for choice in range(len(self._order.requests))
        )

    def piece(self, piece: TokenPiece) -> bytes:
        choice: dict[str, Any] = {
            "index": piece.choice,
            "delta": self._delta(piece),
            "logprobs": None,
            "finish_reason": self._finish_reason(piece.finish),
        }
        last: dict[str, Any] = {}
        if piece.finish is not None:
            choice["stop_reason"] = None
            if not self._order.usage:
                last["system_fingerprint"] = FINGERPRINT
        choice["token_ids"] = [piece.token] if self._order.body.get("return_token_ids") else None
        return self._chunk(choice, piece.usage, last)

    def closing(self, said: list[ChoiceText], usage: AnswerUsage) -> bytes:
        if not self._order.usage:
            return DONE
        told = {"choices": [], "usage": usage_json(usage, self._facts.details), "system_fingerprint": FINGERPRINT}
        return sse_data(self._head | told) + DONE

    def whole(self, said: list[ChoiceText], usage: AnswerUsage) -> dict[str, Any]:
        return self._head | {
            "object": "chat.completion",
            "choices": [self._choice(number, one) for number, one in enumerate(said)],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": full_usage_json(usage, self._facts.details),
            "prompt_logprobs": None,
            "prompt_token_ids": self._prompt_ids(),
            "prompt_text": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def _chunk(self, choice: dict[str, Any], usage: AnswerUsage, more: dict[str, Any]) -> bytes:
        chunk = self._head | {"choices": [choice]} | more
        if self._order.every_usage:
            chunk["usage"] = usage_json(usage, False)
        return sse_data(chunk)

    def _delta(self, piece: TokenPiece) -> dict[str, Any]:
        tool = self._order.tool
        if tool is None:
            return {"content": piece.text}
        if not piece.text:
            return {}
        call: dict[str, Any] = {"index": 0, "function": {"arguments": piece.text}}
        if piece.choice not in self._called:
            self._called.add(piece.choice)
            call = {"id": self._call_id(piece.choice), "type": "function"} | call
            call["function"] = {"name": tool.name, "arguments": piece.text}
        return {"tool_calls": [call]}

    def _choice(self, number: int, said: ChoiceText) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": said.text, "refusal": None, "annotations": None}
        message |= {"audio": None, "function_call": None}
        tool = self._order.tool
        if tool is not None:
            function = {"name": tool.name, "arguments": said.text}
            call = {"id": self._call_id(number), "type": "function", "function": function}
            message |= {"content": "", "tool_calls": [call]}
        return {
            "index": number,
            "message": message | {"reasoning": None},
            "logprobs": None,
            "finish_reason": self._finish_reason(said.finish),
            "stop_reason": None,
            "token_ids": said.tokens if self._order.body.get("return_token_ids") else None,
        }

    def _finish_reason(self, finish: Finish | None) -> str | None:
        """A call of a tool that the client named itself ends with "stop", any other with "tool_calls"."""
        tool = self._order.tool
        return "tool_calls" if finish == "stop" and tool is not None and not tool.named else finish

    def _call_id(self, choice: int) -> str:
        return f"chatcmpl-tool-{self._facts.id}{choice}"

    def _prompt_ids(self) -> list[int] | None:
        return list(self._order.requests[0].token_ids) if self._order.body.get("return_token_ids") else None
