"""Reads the fields of a body in one parse, and detects those that clients may not set.

Engines read bodies with pydantic, which converts: 1 and "yes" are true, true and "7" are numbers. This module
converts these likewise, in a second parse of bodies that the first one refuses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from operator import attrgetter
from typing import Any, Generic, TypeVar, cast, get_args

import msgspec
from msgspec import UNSET, Raw

from router.errors import BadRequest
from router.prompt.api.field_values import short_value
from router.prompt.api.fields import BodyFields, Part
from router.prompt.body_rewrite import UNREADABLE, as_flag, not_json, open_body

F = TypeVar("F", bound=BodyFields)
_FIELD_OF = re.compile(r"\$\.(\w+)")


class FieldReader(Generic[F]):
    """Reads one type of fields from a body. `strip`: names of fields that must not be in the body. `checked`,
    `plain`: names of more fields, for `read_checked`.
    """

    def __init__(
        self, kind: type[F], strip: Collection[str], checked: Sequence[str] = (), plain: Collection[str] = ()
    ) -> None:
        unread = [(f"strip_{i}", name) for i, name in enumerate(sorted(strip))]
        members = [(attribute, Part, msgspec.field(name=name, default=UNSET)) for attribute, name in unread]
        own = {field.encode_name: field for field in msgspec.structs.fields(kind)}
        kinds = {name: get_args(field.type) or (field.type,) for name, field in own.items()}
        self._converts: dict[str, Callable[[object], bytes | None]]
        self._converts = {name: _as_flag for name, types in kinds.items() if bool in types}
        self._converts |= {name: _as_number for name, types in kinds.items() if int in types}
        # A stripped name that is also one of the fields read is detected if that field defaults to UNSET; otherwise
        # every body counts as one that has it.
        both = [own[name] for _, name in unread if name in own]
        self._blind = any(field.default is not UNSET for field in both)
        watched = [member for member, (_, name) in zip(members, unread, strict=True) if name not in own]
        self._watched = (*(member[0] for member in watched), *(field.name for field in both))
        self._decoder = msgspec.json.Decoder(msgspec.defstruct(kind.__name__, watched, bases=(kind,)))
        others = [name for name in (*checked, *plain) if name not in own and name not in strip]
        members += [(f"other_{i}", Part, msgspec.field(name=name, default=UNSET)) for i, name in enumerate(others)]
        members = [member for member in members if member[2].name not in own]
        self._whole = msgspec.defstruct(kind.__name__, members, bases=(kind,), forbid_unknown_fields=True)
        self._whole_decoder = msgspec.json.Decoder(self._whole) if others else None
        fields = {field.encode_name: field for field in msgspec.structs.fields(self._whole)}
        self._checked = tuple(checked)
        self._get_checked = attrgetter(*(fields[name].name for name in checked)) if checked else None
        self._unset = tuple(fields[name].default for name in checked)

    def read(self, raw: bytes) -> F:
        """Parse `raw`. Raises BadRequest for anything but a JSON object, and for a small field of the wrong
        type.
        """
        if (fields := self._read_whole(raw)) is not None:
            return fields
        try:
            return cast(F, self._decoder.decode(raw))
        except msgspec.ValidationError as error:
            if (relaxed := self._read_relaxed(raw)) is not None:
                return relaxed
            if (field := _FIELD_OF.search(str(error))) is None:
                raise not_json(error) from None
            raise BadRequest(f"`{field[1]}`: {error}", param=field[1]) from None
        except UNREADABLE as error:
            raise not_json(error) from None

    def _read_relaxed(self, raw: bytes) -> F | None:
        """Return the fields of a body in which flags and numbers have a type that engines convert; None if the body
        is wrong in some other way.
        """
        changes: dict[str, Raw] = {}
        members = open_body(raw, ()).members
        for name, convert in self._converts.items():
            if name in members and (converted := convert(short_value(members[name]))) is not None:
                changes[name] = Raw(converted)
        try:
            return cast(F, self._decoder.decode(msgspec.json.encode({**members, **changes}))) if changes else None
        except UNREADABLE:
            return None

    def _read_whole(self, raw: bytes) -> F | None:
        """Return the fields of a body that has only fields listed here; None for any other body."""
        if self._whole_decoder is None:
            return None
        try:
            return cast(F, self._whole_decoder.decode(raw))
        except UNREADABLE:  # the body has other fields, or is invalid: `read` finds out which
            return None

    def read_checked(self, fields: F) -> dict[str, Any] | None:
        """Return the `checked` fields of the body that differ from their defaults; None if the body has fields that
        are neither `checked`, nor `plain`, nor of the type.
        """
        if self._get_checked is None or not isinstance(fields, self._whole):
            return None
        found = self._get_checked(fields)
        if found == self._unset:
            return {}
        named = zip(self._checked, found, self._unset, strict=True)
        return {name: field for name, field, unset in named if field is not unset}

    def has_forbidden(self, fields: F) -> bool:
        """Return whether the body that `fields` were read from may hold a field to strip."""
        for attribute in self._watched:
            if getattr(fields, attribute) is not UNSET:
                return True
        return self._blind


def _as_flag(value: object) -> bytes | None:
    """Return a flag as engines read it, in JSON; None for values that engines refuse."""
    flag = as_flag(value)
    return None if flag is None else b"true" if flag else b"false"


def _as_number(value: object) -> bytes | None:
    """Return a whole number as engines read it, in JSON; None for values that engines refuse."""
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
        return b"%d" % int(value)
    try:
        return b"%d" % int(value) if isinstance(value, str) else None
    except ValueError:
        return None
