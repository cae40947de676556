"""Edits of a request body: removes fields that clients may not set and adds a request for usage; other bytes stay.

Engines parse bodies with Python's json and act on `kv_transfer_params` (it can end an engine) and similar fields, so a
field must go however it is spelled: as an escaped key, twice, or between odd spaces. So a parser splits the body into
its members, reading keys but not values: 100 us for 320 KB, less than searching the bytes for the names would take.
Bodies are UTF-8 without a byte order mark: engines would also accept UTF-16, so that is refused.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import msgspec
from msgspec import Raw

from router.errors import BadRequest

_MEMBERS = msgspec.json.Decoder(dict[str, Raw])
_OPTIONS: msgspec.json.Decoder[dict[str, Raw] | None] = msgspec.json.Decoder(dict[str, Raw] | None)
MAX_MEMBERS = 1000  # real requests have a few dozen
_USAGE = b'"stream_options":{"include_usage":true}'


class RequestBody(NamedTuple):
    """A body to forward and its members with unparsed values; of a repeated key the last one counts."""

    raw: bytes
    members: dict[str, Raw]


def open_body(raw: bytes, strip: Collection[str]) -> RequestBody:
    """Return `raw` without the top-level fields `strip`. Raises BadRequest if it is no JSON object, or one of more than
    `MAX_MEMBERS`.
    """
    try:
        members = _MEMBERS.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise not_json(error) from None
    if len(members) > MAX_MEMBERS:
        raise BadRequest(f"the body has more than {MAX_MEMBERS:,} fields")
    kept = {key: value for key, value in members.items() if key not in strip}
    return RequestBody(raw, members) if len(kept) == len(members) else RequestBody(msgspec.json.encode(kept), kept)


def not_json(error: Exception) -> BadRequest:
    """Return the BadRequest for a body that msgspec could not parse."""
    if isinstance(error, msgspec.ValidationError):
        return BadRequest(f"the body must be a JSON object: {error}")
    if isinstance(error, RecursionError):
        return BadRequest("the body is nested too deeply")
    return BadRequest(f"the body is not valid JSON in UTF-8: {error}")


class UsageRequest(NamedTuple):
    """A streamed chat or completion that asks for usage."""

    raw: bytes
    hide: bool  # the client did not ask: drop the usage chunk


def with_usage(body: RequestBody) -> UsageRequest:
    """Ask for the usage chunk. Raises BadRequest for `stream_options` that are no object.

    A missing field is added in front of the closing brace: `body` has at least one member. Usage in *every* chunk,
    which the engine sends only together with the last one, is turned off where the client did not ask for the last one:
    it would not have received it.
    """
    if "stream_options" not in body.members:
        view, end = memoryview(body.raw), body.raw.rindex(b"}")
        raw = b"".join((view[:end], b",", _USAGE, view[end:]))  # one copy: large bodies are costly
        return UsageRequest(raw, hide=True)
    try:
        options = _OPTIONS.decode(body.members["stream_options"]) or {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadRequest("`stream_options` must be an object", param="stream_options") from None
    if "include_usage" in options and msgspec.json.decode(options["include_usage"]):
        return UsageRequest(body.raw, hide=False)
    options["include_usage"] = Raw(b"true")
    if "continuous_usage_stats" in options:
        options["continuous_usage_stats"] = Raw(b"false")
    return UsageRequest(msgspec.json.encode({**body.members, "stream_options": options}), hide=True)
