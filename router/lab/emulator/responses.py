"""`/v1/responses`, as vLLM answers it, and the stored responses.

Sources: openai/responses/serving.py and streaming_events.py. A request that names a stored response in
`previous_response_id` continues its conversation: its input without system messages, and its output messages.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from router.errors import NotFound
from router.lab.emulator.answer_shape import (
    AnswerFacts,
    AnswerShape,
    AnswerUsage,
    ChoiceText,
    TokenPiece,
    sse_event,
)

STORED_RESPONSES = 1000


class ResponseShape(AnswerShape):
    def __init__(self, facts: AnswerFacts) -> None:
        super().__init__(facts)
        self._sequence = 0
        self._open = False  # an output item has begun
        self._text = ""
        self._item_id = f"{'msg' if self._params.tool is None else 'fc'}_{facts.id}"

    def greeting(self) -> bytes:
        response = self._response("in_progress", [], None)
        created = self._event("response.created", response=response)
        return created + self._event("response.in_progress", response=response)

    def piece(self, piece: TokenPiece) -> bytes:
        if not piece.text:
            return b""
        self._text += piece.text
        start = b"" if self._open else self._begin()
        if self._params.tool is not None:
            return start + self._in_item("response.function_call_arguments.delta", delta=piece.text)
        return start + self._in_text("response.output_text.delta", delta=piece.text, logprobs=[])

    def closing(self, choices: list[ChoiceText], usage: AnswerUsage) -> bytes:
        whole = self.whole(choices, usage)
        return (self._finish() if self._open else b"") + self._event("response.completed", response=whole)

    def whole(self, choices: list[ChoiceText], usage: AnswerUsage) -> dict[str, Any]:
        status = "incomplete" if choices[0].finish == "length" else "completed"
        return self._response(status, [self._item("completed", choices[0].text)], usage)

    def unfinished(self, status: str) -> dict[str, Any]:
        """Return the response of a background request that has not ended."""
        return self._response(status, [], None)

    def _begin(self) -> bytes:
        self._open = True
        item = self._item("in_progress", "") | ({"content": []} if self._params.tool is None else {})
        added = self._event("response.output_item.added", output_index=0, item=item)
        if self._params.tool is not None:
            return added
        return added + self._in_text("response.content_part.added", part=_part("") | {"logprobs": []})

    def _finish(self) -> bytes:
        item = self._item("completed", self._text)
        if self._params.tool is None:
            done = self._in_text("response.output_text.done", text=self._text, logprobs=[])
            done += self._in_text("response.content_part.done", part=_part(self._text))
        else:
            name = self._params.tool.name
            done = self._in_item("response.function_call_arguments.done", arguments=self._text, name=name)
        return done + self._event("response.output_item.done", output_index=0, item=item)

    def _in_text(self, type: str, **fields: object) -> bytes:
        return self._in_item(type, content_index=0, **fields)

    def _in_item(self, type: str, **fields: object) -> bytes:
        return self._event(type, item_id=self._item_id, output_index=0, **fields)

    def _event(self, type: str, **fields: object) -> bytes:
        event = {"type": type, "sequence_number": self._sequence} | fields
        self._sequence += 1
        return sse_event(type, event)

    def _item(self, status: str, text: str) -> dict[str, Any]:
        tool = self._params.tool
        if tool is None:
            item = {"id": self._item_id, "content": [_part(text)], "role": "assistant", "status": status}
            return item | {"type": "message", "phase": None}
        call = {"arguments": text, "call_id": f"call_{self._facts.id}", "name": tool.name, "type": "function_call"}
        return call | {"id": self._item_id, "status": status}

    def _response(self, status: str, output: list[dict[str, Any]], usage: AnswerUsage | None) -> dict[str, Any]:
        body = self._params.body
        head = {"id": f"resp_{self._facts.id}", "created_at": self._facts.created}  # first, as in vLLM
        settings = {name: body[name] if body.get(name) is not None else default for name, default in _DEFAULTS.items()}
        rest = {
            "object": "response",
            "model": self._params.model,
            "output": output,
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "max_output_tokens": self._params.sequences[0].max_tokens,
            "usage": None if usage is None else _usage(usage, self._facts.details),
        }
        return head | settings | rest


_DEFAULTS: dict[str, Any] = {
    "instructions": None,
    "metadata": None,
    "parallel_tool_calls": True,
    "temperature": 1.0,
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "background": False,
    "max_tool_calls": None,
    "previous_response_id": None,
    "prompt": None,
    "reasoning": None,
    "service_tier": "auto",
    "text": None,
    "top_logprobs": None,
    "truncation": "disabled",
    "user": None,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "kv_transfer_params": None,
    "ec_transfer_params": None,
    "input_messages": None,
    "output_messages": None,
}


def _part(text: str) -> dict[str, Any]:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": None}


def _usage(usage: AnswerUsage, details: bool) -> dict[str, Any]:
    cached = usage.cached_tokens if details else 0
    per_turn: dict[str, Any] = {"input_tokens_per_turn": [], "cached_tokens_per_turn": []}
    output_details = {"reasoning_tokens": 0, "tool_output_tokens": 0, "output_tokens_per_turn": []}
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0} | per_turn,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": output_details | {"tool_output_tokens_per_turn": []},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


class StoredResponses:
    """The newest `STORED_RESPONSES` responses by id, each with the input items of its request."""

    def __init__(self) -> None:
        self._all: OrderedDict[str, tuple[dict[str, Any], list[Any]]] = OrderedDict()

    def put(self, response: dict[str, Any], items: list[Any]) -> None:
        """Store a response, or replace it by its newer state."""
        self._all[response["id"]] = (response, items)
        while len(self._all) > STORED_RESPONSES:
            self._all.popitem(last=False)

    def get(self, id: str) -> dict[str, Any]:
        """Return the response. Raises NotFound."""
        if id not in self._all:
            raise NotFound(f"Response with id '{id}' not found.", param="response_id")
        return self._all[id][0]

    def expand(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the request with the continued conversation added to its input. Raises NotFound through `get`."""
        previous = body.get("previous_response_id")
        if previous is None:
            return body
        output = [item for item in self.get(previous)["output"] if item["type"] == "message"]
        before = [item for item in self._all[previous][1] if item.get("role") != "system"]
        return body | {"previous_response_id": None, "input": before + output + input_items(body)}


def input_items(body: dict[str, Any]) -> list[Any]:
    """Return a request's input as a list of items."""
    value = body.get("input")
    return [{"role": "user", "content": value}] if isinstance(value, str) else list(value or [])
