"""Fields of a body that the router sets for a model's alias: defaults where the client gave none, and caps.

Endpoints use different names for the same parameter, and not all have it: a default is left out at an endpoint that
has no field for it. A cap replaces a number that is too large, and is set where there is no number. A value that is
not a whole number is refused, not replaced: an engine might read text as a number, and generate more than the cap
allows. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from router.errors import BadRequest
from router.prompt.body_rewrite import UNREADABLE
from router.prompt.prompt import Endpoint

NULL = b"null"
LENGTH = "max_tokens"
_SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("min_tokens", "seed", "stop"),
)
_NAMES: dict[Endpoint, dict[str, str]] = {
    Endpoint.CHAT: {name: name for name in (*_SAMPLING, "reasoning_effort", "chat_template_kwargs")},
    Endpoint.COMPLETIONS: {name: name for name in _SAMPLING},
    Endpoint.RESPONSES: {name: name for name in ("temperature", "top_p")},
    Endpoint.MESSAGES: {"temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "stop": "stop_sequences"},
}
"""The fields of each endpoint by the names of `models.*.defaults`."""

LENGTHS: dict[Endpoint, tuple[str, ...]] = {
    Endpoint.CHAT: ("max_tokens", "max_completion_tokens"),
    Endpoint.COMPLETIONS: ("max_tokens",),
    Endpoint.RESPONSES: ("max_output_tokens",),
    Endpoint.MESSAGES: ("max_tokens",),
}
"""The fields that limit the answer. The first one is set if the client sets none."""


class AliasParameters:
    """The defaults of one alias, by their names in the configuration, and its cap on the answer; None: no cap."""

    def __init__(self, defaults: Mapping[str, Any], max_tokens: int | None) -> None:
        self._max_tokens = max_tokens
        self._default_length = _encode(defaults[LENGTH]) if LENGTH in defaults else None
        self._defaults = {endpoint: _rename(defaults, names) for endpoint, names in _NAMES.items()}

    def find_changes(self, endpoint: Endpoint, members: Mapping[str, Raw]) -> dict[str, Raw]:
        """Return the fields to set in a body with these members; empty for an endpoint that generates nothing.
        Raises `BadRequest` for a limit on the answer that is not a whole number, if there is a cap.
        """
        if (defaults := self._defaults.get(endpoint)) is None:
            return {}
        changes = {name: value for name, value in defaults.items() if not _is_given(members, name)}
        lengths = LENGTHS[endpoint]
        given = [name for name in lengths if _is_given(members, name)]
        if not given:
            default = self._default_length
            if default is None and self._max_tokens is not None:
                default = _encode(self._max_tokens)
            if default is not None:
                changes[lengths[0]] = default
        if (most := self._max_tokens) is not None:
            changes |= {name: _encode(most) for name in given if _read_length(name, members[name]) > most}
        return changes


def _rename(defaults: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Raw]:
    fields = {names[name]: value for name, value in defaults.items() if name in names}
    if isinstance(stop := fields.get("stop_sequences"), str):
        fields["stop_sequences"] = [stop]
    return {name: _encode(value) for name, value in fields.items()}


def _encode(value: Any) -> Raw:
    return Raw(msgspec.json.encode(value))


def _is_given(members: Mapping[str, Raw], name: str) -> bool:
    return name in members and bytes(members[name]) != NULL


def _read_length(name: str, raw: Raw) -> int:
    try:
        return msgspec.json.decode(raw, type=int)
    except UNREADABLE:
        raise BadRequest(f"`{name}` must be a whole number", param=name) from None
