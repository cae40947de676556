"""Parses vLLM's small HTTP answers into domain values. Unreadable answers become `None`, never an exception.

Single invalid entries are left out; the rest of the answer still counts.
"""

from __future__ import annotations

from typing import Any

import msgspec

from router.fleet.engine_facts import EventEndpoint, ModelCard

WILDCARDS = ("*", "0.0.0.0", "[::]", "::")


def read_models(body: bytes) -> list[ModelCard] | None:
    """Parse `GET /v1/models`; `None` if it cannot be read."""
    answer = _json(body)
    entries = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(entries, list):
        return None
    return [card for entry in entries if (card := _card(entry)) is not None]


def _card(entry: Any) -> ModelCard | None:
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
        return None
    return ModelCard(entry["id"], _text(entry, "root"), _text(entry, "parent"), _whole(entry.get("max_model_len")))


def read_event_sources(body: bytes, host: str) -> list[EventEndpoint] | None:
    """Parse `GET /kv_event_sources` (0.31 and later): where each rank publishes, with `host`, the instance's own, in
    place of the wildcards that engines bind to. Ranks without events are absent; `None` if it cannot be read.
    """
    answer = _json(body)
    if not isinstance(answer, dict):
        return None
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
    """Return the endpoint as seen from the router; `None` for transports limited to the engine's process."""
    if endpoint is None or not endpoint.startswith(("tcp://", "ipc://")):
        return None
    if endpoint.startswith("ipc://"):
        return endpoint
    bound, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    if not port.isdecimal():
        return None
    if bound in WILDCARDS:
        bound = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"tcp://{bound}:{port}"


def read_tokenize(body: bytes) -> list[int] | None:
    """Return the prompt's token ids from `POST /tokenize`; `None` if it cannot be read."""
    answer = _json(body)
    tokens = answer.get("tokens") if isinstance(answer, dict) else None
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        return None
    return tokens


def _json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _text(entry: dict[str, Any], key: str) -> str | None:
    value = entry.get(key)
    return value if isinstance(value, str) else None


def _whole(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None
