"""Parses vLLM's small HTTP answers into domain values. Unreadable answers become None, never an exception.

Single invalid entries are left out; the rest of the answer still counts. The caller bounds an answer's bytes; this
module bounds the number of entries and the length of names (`router/fleet/engine_limits.py`).
"""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple

import msgspec

from router.config.sections.base import WILDCARDS, url_host
from router.fleet.engine_facts import EventEndpoint, ModelCard
from router.fleet.engine_limits import (
    MAX_CONTEXT_TOKENS,
    MAX_MODELS,
    MAX_RANKS,
    NAME_CHARS,
    PATH_CHARS,
    OverLimit,
)


class _Tokenized(msgspec.Struct):
    tokens: list[int]


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None


class _Choice(msgspec.Struct):
    prompt_token_ids: list[int] | None = None  # of a completion


class _Answered(msgspec.Struct):
    usage: _Usage | None = None
    prompt_token_ids: list[int] | None = None  # of a chat
    choices: list[_Choice] = []


class _Rendered(msgspec.Struct):
    token_ids: list[int]


_ANSWERED = msgspec.json.Decoder(_Answered)
_RENDERED = msgspec.json.Decoder(_Rendered | list[_Rendered])
_TOKENIZED = msgspec.json.Decoder(_Tokenized)  # typed: a million ids are checked in C


class ModelList(NamedTuple):
    """The first `MAX_MODELS` models and adapters of an engine; `over` is set if there are more."""

    cards: list[ModelCard]
    over: OverLimit | None = None


def read_models(body: bytes) -> ModelList | None:
    """Parse `GET /v1/models`; None if it cannot be read."""
    answer = _json(body)
    entries = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(entries, list):
        return None
    over = None
    if len(entries) > MAX_MODELS:
        over = OverLimit("models", f"more than {MAX_MODELS:,} models in /v1/models: the first ones are served")
    return ModelList([card for entry in entries[:MAX_MODELS] if (card := _card(entry)) is not None], over)


def _card(entry: Any) -> ModelCard | None:
    if not isinstance(entry, dict) or (id := _text(entry, "id")) is None:
        return None
    root, length = _text(entry, "root", PATH_CHARS), _whole(entry.get("max_model_len"))
    return ModelCard(id, root, _text(entry, "parent"), length)


def read_event_sources(body: bytes, host: str) -> list[EventEndpoint] | OverLimit | None:
    """Parse `GET /kv_event_sources` (0.31 and later): where each rank publishes. `host`, the instance's own,
    replaces the wildcards that engines bind to. Ranks without events are absent; None if the answer cannot be read.
    """
    answer = _json(body)
    if not isinstance(answer, dict):
        return None
    if len(answer) > MAX_RANKS:
        return OverLimit("ranks", f"more than {MAX_RANKS} ranks in /kv_event_sources")
    found = (_source(key, entry, host) for key, entry in answer.items())
    by_rank = {source.rank: source for source in found if source is not None}
    return [by_rank[rank] for rank in sorted(by_rank)]


def _source(key: str, entry: Any, host: str) -> EventEndpoint | None:
    if not key.isdecimal() or len(key) > 9 or not isinstance(entry, dict):
        return None
    if entry.get("enable_kv_cache_events") is False or entry.get("publisher") not in (None, "zmq"):
        return None
    if (endpoint := _reachable(_text(entry, "endpoint"), host)) is None:
        return None
    replay = _reachable(_text(entry, "replay_endpoint"), host)
    return EventEndpoint(int(key), endpoint, replay, _text(entry, "topic") or "")


def _reachable(endpoint: str | None, host: str) -> str | None:
    """Return the endpoint as seen from the router; None for transports limited to the engine's process."""
    if endpoint is None or not endpoint.startswith(("tcp://", "ipc://")):
        return None
    if endpoint.startswith("ipc://"):
        return endpoint
    bound, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    if not port.isdecimal():
        return None
    if bound in WILDCARDS:
        bound = url_host(host)
    return f"tcp://{bound}:{port}"


def read_tokenize(body: bytes) -> array[int] | None:
    """Return the prompt's token ids (typecode "I") from `POST /tokenize`; None if the answer cannot be read."""
    try:
        return array("I", _TOKENIZED.decode(body).tokens)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError):
        return None


def read_answered_prompt(body: bytes) -> tuple[array[int] | None, int | None]:
    """Return the prompt's token ids and their number from a whole answer that was requested with
    `return_token_ids`; None for each that is missing: engines before 0.10.2 return no ids.
    """
    try:
        answer = _ANSWERED.decode(body)
        ids = answer.prompt_token_ids
        if ids is None and answer.choices:
            ids = answer.choices[0].prompt_token_ids
        count = None if answer.usage is None else answer.usage.prompt_tokens
        return None if ids is None else array("I", ids), count
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError):
        return None, None


def read_rendered_prompt(body: bytes) -> array[int] | None:
    """Return the prompt's token ids from `/v1/chat/completions/render`, or those of the single prompt from
    `/v1/completions/render`; None if the answer cannot be read.
    """
    try:
        answer = _RENDERED.decode(body)
        rendered = answer if isinstance(answer, list) else [answer]
        return array("I", rendered[0].token_ids) if len(rendered) == 1 else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError):
        return None


def read_sleeping(body: bytes) -> bool:
    """Return whether `GET /is_sleeping` (development mode only) reports that the engine sleeps."""
    answer = _json(body)
    return isinstance(answer, dict) and answer.get("is_sleeping") is True


def read_detokenize(body: bytes) -> str | None:
    """Return the text of `POST /detokenize`; None if the answer cannot be read."""
    answer = _json(body)
    text = answer.get("prompt") if isinstance(answer, dict) else None
    return text if isinstance(text, str) else None


def _json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _text(entry: dict[str, Any], key: str, most_chars: int = NAME_CHARS) -> str | None:
    value = entry.get(key)
    return value if isinstance(value, str) and len(value) <= most_chars else None


def _whole(value: Any) -> int | None:
    return value if type(value) is int and 0 < value <= MAX_CONTEXT_TOKENS else None
