"""`/v1/completions`, as vLLM answers it (openai/completion/serving.py). Choices come prompt by prompt."""

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


class CompletionShape:
    def __init__(self, facts: AnswerFacts) -> None:
        self._facts = facts
        self._order = facts.order
        self._ids = bool(self._order.body.get("return_token_ids"))
        self._begun: set[int] = set()
        self._head = {
            "id": f"cmpl-{facts.id}",
            "object": "text_completion",
            "created": facts.created,
            "model": self._order.model,
        }

    def greeting(self) -> bytes:
        return b""

    def opening(self, usage: AnswerUsage) -> bytes:
        return b""

    def piece(self, piece: TokenPiece) -> bytes:
        choice = {
            "index": piece.choice,
            "text": piece.text,
            "logprobs": None,
            "finish_reason": piece.finish,
            "stop_reason": None,
            "prompt_token_ids": self._prompt_ids(piece.choice) if piece.choice not in self._begun else None,
            "token_ids": [piece.token] if self._ids else None,
        }
        self._begun.add(piece.choice)
        chunk = self._head | {"choices": [choice]}
        if piece.finish is not None and not self._order.usage:
            chunk["system_fingerprint"] = FINGERPRINT
        if self._order.every_usage:
            chunk["usage"] = usage_json(piece.usage, False)
        return sse_data(chunk)

    def closing(self, said: list[ChoiceText], usage: AnswerUsage) -> bytes:
        if not self._order.usage:
            return DONE
        told = {"choices": [], "usage": usage_json(usage, self._facts.details), "system_fingerprint": FINGERPRINT}
        return sse_data(self._head | told) + DONE

    def whole(self, said: list[ChoiceText], usage: AnswerUsage) -> dict[str, Any]:
        choices = [
            {
                "index": number,
                "text": one.text,
                "logprobs": None,
                "finish_reason": one.finish,
                "stop_reason": None,
                "token_ids": one.tokens if self._ids else None,
                "prompt_logprobs": None,
                "prompt_token_ids": self._prompt_ids(number),
                "routed_experts": None,
            }
            for number, one in enumerate(said)
        ]
        return self._head | {
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": full_usage_json(usage, self._facts.details),
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def _prompt_ids(self, choice: int) -> list[int] | None:
        return list(self._order.requests[choice].token_ids) if self._ids else None
