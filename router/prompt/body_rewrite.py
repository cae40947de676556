"""Edits of a request body: removes fields that clients may not set and sets those of the router; other bytes stay.

Engines parse bodies with Python's json and act on `kv_transfer_params` (which can end an engine) and similar
fields, so such a field must be removed however it is spelled: as an escaped key, twice, or between odd spaces. A
parser therefore splits the body into its members, reading keys but not values: 100 us for 320 KB, less than
searching the bytes for the names would take. Bodies are UTF-8 without a byte order mark: engines would also accept
UTF-16, so the router refuses it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

import msgspec
from msgspec import Raw

from router.errors import BadRequest

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Exceptions that msgspec raises for a client's bytes: bad syntax or a wrong type, no UTF-8, brackets nested too
deeply. A field that stays `Raw` has valid syntax, but its strings were not decoded.
"""

_MEMBERS = msgspec.json.Decoder(dict[str, Raw])
_OPTIONS: msgspec.json.Decoder[dict[str, Raw] | None] = msgspec.json.Decoder(dict[str, Raw] | None)
MAX_MEMBERS = 1000  # real requests have a few dozen
_USAGE = b'"stream_options":{"include_usage":true}'
_IDS = b'"return_token_ids":true'
SALT = "cache_salt"


class RequestBody(NamedTuple):
    """A body to forward and its members with unparsed values; of a repeated key the last one counts."""

    raw: bytes
    members: dict[str, Raw]


def open_body(raw: bytes, strip: Collection[str]) -> RequestBody:
    """Return `raw` without the top-level fields `strip`. Raises BadRequest if `raw` is not a JSON object or has
    more than `MAX_MEMBERS` members.
    """
    try:
        members = _MEMBERS.decode(raw)
    except UNREADABLE as error:
        raise not_json(error) from None
    if len(members) > MAX_MEMBERS:
        raise BadRequest(f"the body has more than {MAX_MEMBERS:,} fields")
    kept = {key: value for key, value in members.items() if key not in strip}
    return RequestBody(raw, members) if len(kept) == len(members) else RequestBody(msgspec.json.encode(kept), kept)


def set_salt(raw: bytes, salt: str, *, present: bool) -> bytes:
    """Return `raw`, an object with at least one member, with this `cache_salt`. `present`: `raw` may already have a
    salt, which is replaced so that no reader can take the old one.
    """
    if present:
        return set_members(raw, {SALT: Raw(msgspec.json.encode(salt))})
    return _append(raw, b'"cache_salt":"%b"' % salt.encode())


def set_members(raw: bytes, changes: Mapping[str, Raw]) -> bytes:
    """Return `raw`, an object, with these members set; a member that `raw` already has keeps its place. The bytes
    of other values stay.
    """
    return msgspec.json.encode({**open_body(raw, ()).members, **changes})


def _append(raw: bytes, members: bytes) -> bytes:
    """Return `raw`, an object with at least one member, with `members` added. Copies once: bodies can be large."""
    view, end = memoryview(raw), raw.rindex(b"}")
    return b"".join((view[:end], b",", members, view[end:]))


def not_json(error: Exception) -> BadRequest:
    """Return the BadRequest for a body that msgspec could not parse."""
    if isinstance(error, msgspec.ValidationError):
        return BadRequest(f"the body must be a JSON object: {error}")
    if isinstance(error, RecursionError):
        return BadRequest("the body is nested too deeply")
    return BadRequest(f"the body is not valid JSON in UTF-8: {error}")


_FLAGS: Final = {
    **dict.fromkeys(("1", "on", "t", "true", "y", "yes"), True),
    **dict.fromkeys(("0", "off", "f", "false", "n", "no"), False),
}


def as_flag(value: object) -> bool | None:
    """Return a flag as engines read it; None for values that engines refuse (pydantic 2, Conversion Table)."""
    if isinstance(value, str):
        return _FLAGS.get(value.lower())
    return bool(value) if isinstance(value, int | float) and value in (0, 1) else None


class AnswerAdditions:
    """The fields of an answer that the router itself needs."""

    def __init__(self, usage: bool, token_ids: bool) -> None:
        self.usage = usage
        self.token_ids = token_ids


class AnswerRequest(NamedTuple):
    """A body that requests `AnswerAdditions`, and which of them the client did not request and must not see."""

    raw: bytes
    hide_usage: bool = False  # drop the usage chunk
    hide_ids: bool = False  # send null in place of the ids


def requests_usage(raw: bytes) -> bool:
    """Return whether the body of a streamed chat or completion, already parsed once, requests the usage chunk."""
    members = open_body(raw, ()).members
    try:
        options = _OPTIONS.decode(members["stream_options"]) if "stream_options" in members else None
        return options is not None and _read_flag(options.get("include_usage")) is True
    except UNREADABLE:
        return False  # no engine accepts these options


def ask_engine(
    raw: bytes, stream_options: Raw | None, return_token_ids: Raw | None, additions: AnswerAdditions
) -> AnswerRequest:
    """Return `raw`, a streamed chat or completion with at least one member, with a request for `additions` in the
    answer. `stream_options` and `return_token_ids` are its fields of these names; None if it has none. Raises
    BadRequest for `stream_options` that are not an object.

    Missing fields are added in front of the closing brace. Usage in *every* chunk, which the engine sends only
    together with the final usage chunk, is turned off where the client did not request that chunk: it would not
    have received any.
    """
    added: list[bytes] = []
    changed: dict[str, Raw] = {}
    if additions.usage and stream_options is None:
        added.append(_USAGE)
    elif additions.usage and stream_options is not None and (options := _add_usage(stream_options)) is not None:
        changed["stream_options"] = options
    hide_usage = bool(added or changed)
    if additions.token_ids and return_token_ids is None:
        added.append(_IDS)
    elif additions.token_ids and return_token_ids is not None and _read_flag(return_token_ids) is False:
        changed["return_token_ids"] = Raw(b"true")
    hide_ids = len(added) + len(changed) > hide_usage
    if changed:
        raw = msgspec.json.encode(open_body(raw, ()).members | changed)
    if added:
        raw = _append(raw, b",".join(added))
    return AnswerRequest(raw, hide_usage, hide_ids)


def _add_usage(stream_options: Raw) -> Raw | None:
    """Return the options with usage requested; None if they already have it, or a value that the engine refuses."""
    try:
        options = _OPTIONS.decode(stream_options) or {}
    except UNREADABLE:
        raise BadRequest("`stream_options` must be an object of valid JSON", param="stream_options") from None
    if _read_flag(options.get("include_usage")) is not False:
        return None
    options["include_usage"] = Raw(b"true")
    if "continuous_usage_stats" in options:
        options["continuous_usage_stats"] = Raw(b"false")
    return Raw(msgspec.json.encode(options))


def _read_flag(flag: Raw | None) -> bool | None:
    """Return a flag as engines read it, False if it is missing or null; None for values that engines refuse."""
    if flag is None or bytes(flag) == b"null":
        return False
    try:
        return as_flag(msgspec.json.decode(flag))
    except UNREADABLE:
        return None
