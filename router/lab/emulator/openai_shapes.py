"""`/v1/chat/completions` and `/v1/completions`, as vLLM answers them.

Sources: openai/chat_completion/serving.py and openai/completion/serving.py. The two formats share the end of an
answer, usage and chunks; they differ in their choices and in the order of fields, which is vLLM's.
"""

from __future__ import annotations

from typing import Any

from router.lab.emulator.answer_shape import (
    DONE,
    FINGERPRINT,
    AnswerFacts,
    AnswerShape,
    AnswerUsage,
    ChoiceText,
    TokenPiece,
    sse_data,
)
from router.lab.simulator.engine_types import Finish


class _OpenAIShape(AnswerShape):
    def __init__(self, facts: AnswerFacts, prefix: str, kind: str) -> None:
        super().__init__(facts)
        self._return_ids = bool(self._params.body.get("return_token_ids"))
        head = {"id": f"{prefix}-{facts.id}", "object": kind, "created": facts.created}
        self._head = head | {"model": self._params.model}

    def closing(self, choices: list[ChoiceText], usage: AnswerUsage) -> bytes:
        if not self._params.include_usage:
            return DONE
        last = {"choices": [], "usage": self._usage(usage, self._facts.details), "system_fingerprint": FINGERPRINT}
        return sse_data(self._head | last) + DONE

    def _chunk(self, choice: dict[str, Any], usage: AnswerUsage, more: dict[str, Any]) -> bytes:
        chunk = self._head | {"choices": [choice]} | more
        if self._params.usage_per_chunk:
            chunk["usage"] = self._usage(usage, False)
        return sse_data(chunk)

    def _fingerprint(self, piece: TokenPiece) -> dict[str, Any]:
        """Return the fingerprint field for a choice's last piece unless a usage chunk follows; {} otherwise."""
        ends = piece.finish is not None and not self._params.include_usage
        return {"system_fingerprint": FINGERPRINT} if ends else {}

    def _answer(self, choices: list[dict[str, Any]], usage: AnswerUsage, more: dict[str, Any]) -> dict[str, Any]:
        common = {"choices": choices, "service_tier": None, "system_fingerprint": FINGERPRINT}
        last = {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}
        return self._head | common | {"usage": self._whole_usage(usage)} | more | last

    def _usage(self, usage: AnswerUsage, details: bool) -> dict[str, Any]:
        counts: dict[str, Any] = {
            "prompt_tokens": usage.prompt_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            "completion_tokens": usage.completion_tokens,
        }
        if details:
            counts["prompt_tokens_details"] = {"cached_tokens": usage.cached_tokens}
        return counts

    def _whole_usage(self, usage: AnswerUsage) -> dict[str, Any]:
        """Return usage as in a complete answer, with the fields that chunks omit."""
        details = self._facts.details
        counts = self._usage(usage, details) | {"completion_tokens_details": None}
        empty = {"created_cache_tokens": None, "multimodal_tokens": None}
        counts["prompt_tokens_details"] = counts["prompt_tokens_details"] | empty if details else None
        return counts

    def _prompt_ids(self, choice: int) -> list[int] | None:
        return list(self._params.sequences[choice].token_ids) if self._return_ids else None


class ChatShape(_OpenAIShape):
    def __init__(self, facts: AnswerFacts) -> None:
        super().__init__(facts, "chatcmpl", "chat.completion.chunk")
        self._called: set[int] = set()  # choices whose tool call has begun

    def opening(self, usage: AnswerUsage) -> bytes:
        """Return a chunk for every choice, with the role and no text yet."""
        delta = {"role": "assistant", "content": ""}
        ids = {"prompt_token_ids": self._prompt_ids(0), "prompt_text": None}
        usage = usage._replace(completion_tokens=0)
        return b"".join(
            self._chunk({"index": choice, "delta": delta, "logprobs": None, "finish_reason": None}, usage, ids)
            for choice in range(len(self._params.sequences))
        )

    def piece(self, piece: TokenPiece) -> bytes:
        choice: dict[str, Any] = {
            "index": piece.choice,
            "delta": self._delta(piece),
            "logprobs": None,
            "finish_reason": self._finish_reason(piece.finish),
        }
        if piece.finish is not None:
            choice["stop_reason"] = None
        choice["token_ids"] = [piece.token] if self._return_ids else None
        return self._chunk(choice, piece.usage, self._fingerprint(piece))

    def whole(self, choices: list[ChoiceText], usage: AnswerUsage) -> dict[str, Any]:
        more = {"prompt_logprobs": None, "prompt_token_ids": self._prompt_ids(0), "prompt_text": None}
        answer = self._answer([self._choice(number, one) for number, one in enumerate(choices)], usage, more)
        return answer | {"object": "chat.completion"}

    def _delta(self, piece: TokenPiece) -> dict[str, Any]:
        tool = self._params.tool
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

    def _choice(self, number: int, choice: ChoiceText) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None, "annotations": None}
        message |= {"audio": None, "function_call": None}
        tool = self._params.tool
        if tool is not None:
            function = {"name": tool.name, "arguments": choice.text}
            call = {"id": self._call_id(number), "type": "function", "function": function}
            message |= {"content": "", "tool_calls": [call]}
        return {
            "index": number,
            "message": message | {"reasoning": None},
            "logprobs": None,
            "finish_reason": self._finish_reason(choice.finish),
            "stop_reason": None,
            "token_ids": choice.tokens if self._return_ids else None,
        }

    def _finish_reason(self, finish: Finish | None) -> str | None:
        """Return "stop" for a call of a tool that the client named, "tool_calls" for any other call."""
        tool = self._params.tool
        return "tool_calls" if finish == "stop" and tool is not None and not tool.chosen_by_name else finish

    def _call_id(self, choice: int) -> str:
        return f"chatcmpl-tool-{self._facts.id}{choice}"


class CompletionShape(_OpenAIShape):
    """Answer of `/v1/completions`, with choices ordered by prompt."""

    def __init__(self, facts: AnswerFacts) -> None:
        super().__init__(facts, "cmpl", "text_completion")
        self._begun: set[int] = set()

    def piece(self, piece: TokenPiece) -> bytes:
        choice = {
            "index": piece.choice,
            "text": piece.text,
            "logprobs": None,
            "finish_reason": piece.finish,
            "stop_reason": None,
            "prompt_token_ids": self._prompt_ids(piece.choice) if piece.choice not in self._begun else None,
            "token_ids": [piece.token] if self._return_ids else None,
        }
        self._begun.add(piece.choice)
        return self._chunk(choice, piece.usage, self._fingerprint(piece))

    def whole(self, choices: list[ChoiceText], usage: AnswerUsage) -> dict[str, Any]:
        return self._answer([self._choice(number, one) for number, one in enumerate(choices)], usage, {})

    def _choice(self, number: int, choice: ChoiceText) -> dict[str, Any]:
        return {
            "index": number,
            "text": choice.text,
            "logprobs": None,
            "finish_reason": choice.finish,
            "stop_reason": None,
            "token_ids": choice.tokens if self._return_ids else None,
            "prompt_logprobs": None,
            "prompt_token_ids": self._prompt_ids(number),
            "routed_experts": None,
        }
