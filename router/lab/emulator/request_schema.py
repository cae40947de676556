"""Request bodies as vLLM 0.32's web framework reads them: decoded, coerced and rejected before vLLM's own code
runs.

FastAPI decodes with Python's `json`, so a byte order mark, UTF-16, NaN and repeated keys (the last counts) are not
errors; pydantic's lax mode turns strings into numbers, and "yes" or 1 into a boolean. The models are vLLM's,
reduced to the fields that the emulator needs; pydantic itself produces their errors. Errors have three forms
(recorded from a real engine):

    {"error": {..., "type": "Bad Request", "param": "body.stream", "code": 400}}   from the schema, everywhere
    {"detail": "There was an error parsing the body"}                              `json` failed, but not on syntax
    {"error": {..., "type": "BadRequestError", ...}}                               from `request_params.py`, later
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, Literal, NamedTuple

import msgspec
from pydantic import BaseModel, Field, ValidationError

from router.errors import BadRequest
from router.lab.emulator.http_server import HttpExchange

MAX_ERRORS = 10  # listed in one message
Body = dict[str, Any]


class SchemaRefused(Exception):
    """400 in the schema's form; `param` is the first field at fault, None for the content type."""

    def __init__(self, message: str, param: str | None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class UnreadableBody(Exception):
    """400 for a body that is not text or is nested too deeply."""


class CheckedBody(NamedTuple):
    """A coerced body, and its bytes."""

    raw: bytes
    fields: Body


class _Schema(BaseModel, extra="allow"):
    model: str | None = None


class _Generation(_Schema):
    stream: bool | None = False
    stream_options: dict[str, Any] | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    kv_transfer_params: dict[str, Any] | None = None


class _Sampling(_Generation):
    max_tokens: int | None = None
    n: int | None = 1
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    allowed_token_ids: list[int] | None = None
    logit_bias: dict[str, float] | None = None
    echo: bool | None = False
    add_special_tokens: bool = False


class _Function(BaseModel, extra="allow"):
    name: str
    parameters: dict[str, Any] | None = None


class _Tool(BaseModel, extra="allow"):
    type: Literal["function"] = "function"
    function: _Function


class _CalledFunction(BaseModel, extra="allow"):
    name: str
    arguments: str


class _ToolCall(BaseModel, extra="allow"):
    function: _CalledFunction


class _ChatMessage(BaseModel, extra="allow"):
    role: str
    content: str | list[Any] = ""
    tool_calls: list[_ToolCall] | None = None


class _AssistantMessage(_ChatMessage):
    role: Literal["assistant"]
    content: str | list[Any] | None = None  # type: ignore[assignment]  # only its own may be null


class ChatCompletionDeveloperMessageParam(BaseModel, extra="allow"):
    """The first kind of message in OpenAI's schema: vLLM's errors name it for messages of every kind."""

    content: str | list[Any]
    role: Literal["developer"]


class _Chat(_Sampling):
    messages: list[ChatCompletionDeveloperMessageParam | _AssistantMessage | _ChatMessage]
    max_completion_tokens: int | None = None
    tools: list[_Tool] | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None


class _Completion(_Sampling):
    prompt: list[Any] | str | None = None
    add_special_tokens: bool = True
    logprobs: int | None = None


class _Responses(_Generation):
    input: str | list[Any]
    instructions: str | None = None
    max_output_tokens: int | None = None
    background: bool | None = False
    store: bool | None = True
    previous_response_id: str | None = None


class _AnthropicMessage(BaseModel, extra="allow"):
    role: Literal["user", "assistant", "system"]
    content: str | list[dict[str, Any]]


class _AnthropicTool(BaseModel, extra="allow"):
    name: str
    input_schema: dict[str, Any]


class _CountTokens(_Schema):
    model: str = Field(min_length=1)
    messages: list[_AnthropicMessage]
    tools: list[_AnthropicTool] | None = None


class _Messages(_CountTokens):
    max_tokens: int = Field(gt=0)
    stream: bool | None = False
    temperature: float | None = None
    top_p: float | None = None


class _Detokenize(_Schema):
    tokens: list[int]


SCHEMAS: dict[str, type[_Schema]] = {
    "/v1/chat/completions": _Chat,
    "/v1/completions": _Completion,
    "/v1/responses": _Responses,
    "/v1/messages": _Messages,
    "/v1/messages/count_tokens": _CountTokens,
    "/detokenize": _Detokenize,
}


def read_body(exchange: HttpExchange, model: str) -> CheckedBody:
    """Return the body as the endpoint's schema reads it. A body without a model is for `model`.

    Raises SchemaRefused, UnreadableBody or BadRequest.
    """
    fields, plain = _read(exchange)
    try:
        read = SCHEMAS.get(exchange.path, _Schema).model_validate(fields)
    except ValidationError as refusal:
        raise _describe([dict(error) for error in refusal.errors(include_url=False)]) from None
    changed = {name: value for name in fields if _is_coerced(value := getattr(read, name), fields[name])}
    if not read.model:
        changed["model"] = model
    if plain and not changed:
        return CheckedBody(exchange.body, fields)
    fields = fields | changed
    return CheckedBody(_encode(fields), fields)


def read_json(exchange: HttpExchange) -> Body:
    """Return the body as a JSON object. Raises SchemaRefused or UnreadableBody."""
    return _read(exchange)[0]


def _read(exchange: HttpExchange) -> tuple[Body, bool]:
    """Return the body as an object, and whether it is JSON in UTF-8, which every decoder accepts."""
    value, plain = None, False
    if exchange.body:
        if exchange.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
            raise SchemaRefused(message, None)
        value, plain = _decode(exchange.body)
    if value is None:
        raise _describe([{"type": "missing", "loc": (), "msg": "Field required", "input": None}])
    if not isinstance(value, dict):
        message = "Input should be a valid dictionary or object to extract fields from"
        raise _describe([{"type": "model_attributes_type", "loc": (), "msg": message, "input": value}])
    return value, plain


def _decode(raw: bytes) -> tuple[Any, bool]:
    with suppress(msgspec.DecodeError, ValueError, RecursionError):
        return msgspec.json.decode(raw), True
    try:
        return json.loads(raw), False  # several times slower, but accepts more; its verdict counts
    except json.JSONDecodeError as error:
        invalid = {"type": "json_invalid", "loc": (error.pos,), "msg": "JSON decode error", "input": {}}
        raise _describe([invalid | {"ctx": {"error": error.msg}}]) from None
    except (ValueError, RecursionError):
        raise UnreadableBody from None


def _encode(fields: Body) -> bytes:
    """Return the fields as JSON for the reader of prompts, which rejects NaN (written as null)."""
    try:
        return msgspec.json.encode(fields)
    except UnicodeEncodeError:  # half of a surrogate pair: the tokenizer's own message
        message = "TextEncodeInput must be Union[TextInputSequence, Tuple[InputSequence, InputSequence]]"
        raise BadRequest(message) from None
    except OverflowError:  # an integer of more than 64 bits
        return json.dumps(fields).encode()


def _is_coerced(value: object, given: object) -> bool:
    """Return whether the schema changed the `given` scalar; an integer may stand for a float."""
    if not isinstance(value, bool | int | float | str) or (isinstance(value, float) and type(given) is int):
        return False
    return type(value) is not type(given) or value != given


def _describe(errors: list[dict[str, Any]]) -> SchemaRefused:
    """Return vLLM's message for pydantic's errors. It quotes values, but not the contents of containers."""
    for error in errors:
        path = [str(part) for part in error["loc"] if not _is_internal(str(part))]
        error["loc"] = ".".join(["body", *path])
        error["input"] = _summarise(error["input"])
    count = f"{len(errors)} validation error{'s' if len(errors) > 1 else ''}"
    lines = [f"  {error}" for error in errors[:MAX_ERRORS]]
    if len(errors) > MAX_ERRORS:
        lines.append(f"  ...and {len(errors) - MAX_ERRORS} more errors")
    return SchemaRefused("\n".join([f"{count}:", *lines]), errors[0]["loc"])


def _is_internal(part: str) -> bool:
    """Return whether `part` of an error's path names a branch of a union, not a field."""
    return part in ("str", "int", "dict", "list") or not set(part).isdisjoint("[](){}")


def _summarise(value: object) -> str:
    if isinstance(value, dict | list):
        return f"<{type(value).__name__} of {len(value)} items>"
    return str(value)[:200]
