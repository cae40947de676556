"""Rejections by vLLM's own code of requests whose fields have the right types, with vLLM's messages and parameter
names.

Most requests are rejected before an answer begins. Values that only the engine core can judge are rejected late: a
stream has begun by then, so the error is its first event or, at `/v1/responses`, the stream is cut (recorded from
vLLM 0.32).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from router.errors import BadRequest

Body = dict[str, Any]
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
MAX_TOKENS = ("max_completion_tokens", "max_output_tokens", "max_tokens")  # the endpoints' names for the limit
TOOL_CHOICES = ("none", "auto", "required")


def check_limits(path: str, body: Body, context_tokens: int) -> None:
    """Raise BadRequest for the first field that is out of range."""
    if path == CHAT:
        _check_tools(body)
    for check in _CHECKS:
        check(body)
    for name in MAX_TOKENS:
        tokens = body.get(name)
        if tokens is None:
            continue
        if tokens > context_tokens:
            problem = f"cannot be greater than max_model_len={context_tokens}. Please request fewer output tokens."
            raise _refusal(f"{name}={tokens} {problem}", name, tokens)
        if tokens < 1:
            raise _refusal(f"max_tokens must be at least 1, got {tokens}.", "max_tokens", tokens)


def find_late_refusal(path: str, body: Body, vocabulary: int) -> BadRequest | None:
    """Return the engine core's rejection of a request, None if accepted. Fields of other endpoints are ignored."""
    if path == MESSAGES:
        return None
    for name in ("stop_token_ids",) if path == RESPONSES else ("allowed_token_ids", "stop_token_ids"):
        if any(not 0 <= id < vocabulary for id in body.get(name) or ()):
            return _refusal(f"{name} contains out-of-vocab token id!", name, body[name])
    unknown = [int(id) for id in body.get("logit_bias") or () if not 0 <= int(id) < vocabulary]
    if unknown:
        problem = f"contain out-of-vocab token ids. Vocabulary size: {vocabulary}"
        return _refusal(f"token_id(s) {unknown} in logit_bias {problem}", "logit_bias", unknown)
    return None


def _check_streaming(body: Body) -> None:
    if body.get("stream_options") is not None and not body.get("stream"):
        raise _refusal("Stream options can only be defined when `stream=True`.", "stream_options")


def _check_salt(body: Body) -> None:
    salt = body.get("cache_salt")
    if salt is not None and not (isinstance(salt, str) and salt):
        raise _refusal("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt")


def _check_tools(body: Body) -> None:
    tools, choice = body.get("tools"), body.get("tool_choice")
    if tools == []:
        problem = "must not be an empty array. Either provide at least one tool or omit the field entirely."
        raise _refusal(f"`tools` {problem}", "tools")
    if isinstance(choice, str) and choice not in TOOL_CHOICES:
        known = 'Only named tools, "none", "auto" or "required" are supported.'
        raise _refusal(f"Invalid value for `tool_choice`: {choice}! {known}", "tool_choice")
    if not tools and choice not in (None, "none"):
        raise _refusal("When using `tool_choice`, `tools` must be set.", "tool_choice")


def _check_background(body: Body) -> None:
    if body.get("background") and body.get("store") is False:
        raise _refusal("background can only be used when `store` is true", "background")


def _check_temperature(body: Body) -> None:
    value = body.get("temperature")
    if value is None:
        return
    if not math.isfinite(value):
        raise _refusal(f"temperature must be a finite number, got {value}.", "temperature", value)
    if value < 0:
        raise _refusal(f"temperature must be non-negative, got {float(value)}.", "temperature", float(value))
    if value > 2:
        raise _refusal(f"temperature must be in [0, 2], got {float(value)}.", "temperature", float(value))


def _check_top_p(body: Body) -> None:
    value = body.get("top_p")
    if value is not None and not 0 < value <= 1:
        raise _refusal(f"top_p must be in (0, 1], got {float(value)}.", "top_p", float(value))


def _check_stop(body: Body) -> None:
    stop = body.get("stop")
    if stop == "" or (isinstance(stop, list) and "" in stop):
        raise BadRequest("stop cannot contain an empty string.")


def _check_integers(body: Body) -> None:
    top_k, least, most = body.get("top_k"), body.get("min_tokens") or 0, body.get("max_tokens")
    if isinstance(top_k, int) and top_k < -1:
        raise BadRequest(f"top_k must be 0 (disable), or at least 1, got {top_k}.")
    if most is not None and least > most >= 1:
        raise BadRequest(f"min_tokens must be less than or equal to max_tokens={most}, got {least}.")


def _check_logprobs(body: Body) -> None:
    if body.get("top_logprobs") and body.get("logprobs") is not True:
        raise _refusal("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")


def _check_bias(body: Body) -> None:
    keys = [key for key in body.get("logit_bias") or () if not key.lstrip("-").isdecimal()]
    if keys:
        message = f"logit_bias contains key(s) that cannot be converted to integer token IDs: {keys}"
        raise _refusal(message, "logit_bias", keys)


_CHECKS: tuple[Callable[[Body], None], ...] = (
    _check_streaming,
    _check_salt,
    _check_background,
    _check_temperature,
    _check_top_p,
    _check_stop,
    _check_integers,
    _check_logprobs,
    _check_bias,
)


def _refusal(message: str, param: str, value: object = None) -> BadRequest:
    suffix = f"(parameter={param})" if value is None else f"(parameter={param}, value={value})"
    return BadRequest(f"{message} {suffix}", param=param)
