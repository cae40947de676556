"""What clients may not set is taken out here, and what the router needs is put in; every other byte stays.

Engines parse bodies with Python's json and act on `kv_transfer_params` (it can end an engine) and the like, so a field
must go however it is spelled: as an escaped key, twice, or between odd spaces. So a body is split into its members by
a parser, keys read and values not: on 320 KB that takes 100 us, less than looking for the names in the bytes would.
Bodies are UTF-8 without a byte order mark: engines would also take UTF-16, so that is refused.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import msgspec
from msgspec import Raw

from router.errors import BadRequest

_MEMBERS = msgspec.json.Decoder(dict[str, Raw])
_OPTIONS: msgspec.json.Decoder[dict[str, Raw] | None] = msgspec.json.Decoder(dict[str, Raw] | None)
_USAGE = b'"stream_options":{"include_usage":true}'


class RequestBody(NamedTuple):
    """What is forwarded, and its members, values unread; of a key that comes twice the last one counts."""

    raw: bytes
    members: dict[str, Raw]


def open_body(raw: bytes, strip: Collection[str]) -> RequestBody:
    """`raw` without the top-level fields `strip`, the same object if it has none. Raises BadRequest for no object."""
    try:
        members = _MEMBERS.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as wrong:
        raise not_json(wrong) from None
    kept = {key: value for key, value in members.items() if key not in strip}
    return RequestBody(raw, members) if len(kept) == len(members) else RequestBody(msgspec.json.encode(kept), kept)


def not_json(wrong: Exception) -> BadRequest:
    if isinstance(wrong, msgspec.ValidationError):
        return BadRequest(f"the body must be a JSON object: {wrong}")
    if isinstance(wrong, RecursionError):
        return BadRequest("the body is nested too deeply")
    return BadRequest(f"the body is not valid JSON in UTF-8: {wrong}")


class UsageRequest(NamedTuple):
    """How a streamed chat or completion asks for usage."""

    raw: bytes
    hide: bool  # the client did not ask: the one usage chunk is to be dropped


def with_usage(body: RequestBody) -> UsageRequest:
    """Asks for the usage chunk. Raises BadRequest for `stream_options` that are no object.

    Where the client has no such field, it is added in front of the closing brace: `body` has at least one member.
    Usage in *every* chunk, which the engine only sends together with the last one, is turned off where we ask in the
    client's place: it would not have got it.
    """
    if "stream_options" not in body.members:
        view, end = memoryview(body.raw), body.raw.rindex(b"}")
        return UsageRequest(
            b"".join((view[:end], b",", _USAGE, view[end:])), hide=True
        )  # one copy: large ones are costly
    try:
        asked = _OPTIONS.decode(body.members["stream_options"]) or {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadRequest("`stream_options` must be an object", param="stream_options") from None
    if "include_usage" in asked and msgspec.json.decode(asked["include_usage"]):
        return UsageRequest(body.raw, hide=False)
    asked["include_usage"] = Raw(b"true")
    if "continuous_usage_stats" in asked:
        asked["continuous_usage_stats"] = Raw(b"false")
    return UsageRequest(msgspec.json.encode({**body.members, "stream_options": asked}), hide=True)
