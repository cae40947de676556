"""Reads and edits fields of forms (multipart/form-data), in which audio files are uploaded: fields by name, never a
file.

Engines act on a form as on a JSON object, so its `model` determines the placement, and fields that only the router
may set are removed. Two parsers must not read one form in two ways: whatever RFC 7578 does not need, and clients do
not write, is refused. The files are searched for the delimiter and not copied; an edit copies the body once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from router.errors import BadRequest

MAX_PARTS: Final = 1000  # Starlette's limit, and so vLLM's
MAX_HEAD_BYTES: Final = 8 * 1024  # of one part; python-multipart takes 8 lines of 4 KiB
_KIND: Final = "multipart/form-data"
_HEADER = re.compile(rb"([!#-'*+.0-9A-Z^-z|~-]+):[ \t]*([^\r\n]*)")
_PARAMETER = re.compile(
    rb"""[ \t]*([!#-'*+.0-9A-Z^-z|~-]+)=(?:"((?:[^"\\\r\n]|\\.)*)"|([^\s";,]+))[ \t]*(?:;[ \t]*|$)"""
)


class Field(NamedTuple):
    """One part. Its value is `body[start:end]`; the previous delimiter ends at `begin`, the next one begins at
    `end`.
    """

    name: str
    is_file: bool
    begin: int
    start: int
    end: int


class Form(NamedTuple):
    """The parts of a body, and the delimiter between them."""

    delimiter: bytes
    fields: list[Field]


def is_form(content_type: str | None) -> bool:
    return content_type is not None and content_type.partition(";")[0].strip().lower() == _KIND


def read_delimiter(content_type: str) -> bytes:
    """Return the delimiter of a form's parts. Raises BadRequest."""
    parameters = _read_parameters(content_type.partition(";")[2].encode("latin-1", "replace"))
    boundary = parameters.get(b"boundary")
    if not boundary or parameters.get(b"charset", b"utf-8").lower() != b"utf-8":
        raise BadRequest("the form has no boundary, or is not in UTF-8")
    return b"\r\n--" + boundary


def open_form(body: bytes, delimiter: bytes) -> Form:
    """Return the parts of `body`. Raises BadRequest for a body that engines might read differently."""
    fields: list[Field] = []
    at = len(delimiter) - 2
    if not body.startswith(delimiter[2:]):
        raise BadRequest("the form does not begin with its boundary")
    while not body.startswith(b"--", at):
        if len(fields) == MAX_PARTS:
            raise BadRequest(f"the form has more than {MAX_PARTS:,} parts")
        head_end = body.find(b"\r\n\r\n", at, at + MAX_HEAD_BYTES)
        end = -1 if head_end < at + 2 else body.find(delimiter, head_end + 4)
        if end < 0 or not body.startswith(b"\r\n", at):
            raise BadRequest("the form is cut off, or a part of it has no header")
        name, is_file = _read_head(body[at + 2 : head_end])
        fields.append(Field(name, is_file, at, head_end + 4, end))
        at = end + len(delimiter)
    return Form(delimiter, fields)


def read_text(body: bytes, form: Form, name: str) -> str | None:
    """Return the value of a field, the last value if it is repeated, as engines do; None if it is missing or empty.
    Raises BadRequest for a file, or a value that is not UTF-8.
    """
    field = next((field for field in reversed(form.fields) if field.name == name), None)
    if field is None:
        return None
    try:
        if not field.is_file:
            return body[field.start : field.end].decode() or None
    except UnicodeDecodeError:
        pass
    raise BadRequest(f"`{name}` must be text in UTF-8", param=name)


def edit_fields(body: bytes, form: Form, changes: Mapping[str, bytes | None]) -> bytes:
    """Return `body` with these values in all fields of these names; a field whose new value is None is removed."""
    pieces: list[bytes | memoryview] = []
    view, at = memoryview(body), 0
    for field in form.fields:
        if field.name in changes:
            new = changes[field.name]
            pieces.append(view[at : field.begin if new is None else field.start])
            pieces.append(new or b"")
            at = field.end + len(form.delimiter) if new is None else field.end
    pieces.append(view[at:])
    return b"".join(pieces) if len(pieces) > 1 else body


def _read_head(head: bytes) -> tuple[str, bool]:
    """Return the name of a part, and whether it is a file. Raises BadRequest."""
    dispositions: list[bytes] = []
    for line in head.split(b"\r\n"):
        if (header := _HEADER.fullmatch(line)) is None:
            raise BadRequest("a part of the form has a malformed header")
        if header[1].lower() == b"content-disposition":
            dispositions.append(header[2])
    kind, _, rest = b"".join(dispositions).partition(b";")
    parameters = _read_parameters(rest)
    name = parameters.get(b"name", b"\\")
    plain = b"\\" not in name and not any(key.startswith(b"name*") for key in parameters)  # RFC 2231's other spellings
    if len(dispositions) != 1 or kind.strip().lower() != b"form-data" or not plain:
        raise BadRequest("a part of the form has no `Content-Disposition` with a plain name")
    try:
        return name.decode(), b"filename" in parameters
    except UnicodeDecodeError:
        raise BadRequest("the name of a part of the form is not in UTF-8") from None


def _read_parameters(rest: bytes) -> dict[bytes, bytes]:
    """Return the parameters that follow a header's value, by their lower-case names. Raises BadRequest."""
    parameters: dict[bytes, bytes] = {}
    at = 0
    while at < len(rest):
        found = _PARAMETER.match(rest, at)
        if found is None or found[1].lower() in parameters:
            raise BadRequest("a header of the form has malformed or repeated parameters")
        parameters[found[1].lower()] = found[3] if found[2] is None else found[2]
        at = found.end()
    return parameters
