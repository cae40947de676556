"""Reads decision log files back into records: streaming, in constant memory, in the order of the files' names.

Nothing in a file can stop the reader. A crash leaves a last line without its end; any other unreadable line is
damage. Both are returned as `UnreadableLine`, with the place and the reason. Files may be plain or compressed, and
may still be written, compressed or removed meanwhile.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from gzip import GzipFile
from io import SEEK_END, BufferedReader
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from router.errors import WarmrouteError
from router.features.decision_log.files import COMPRESSED, PLAIN, list_compressed, list_plain
from router.features.decision_log.format import (
    FIELDS,
    OLD_NAMES,
    OLDEST_VERSION,
    VERSION,
    FileHead,
    LoggedPolicy,
    LoggedRecord,
    decode,
)

BUFFER_BYTES = 256 * 1024
PROGRESS_EVERY = 256  # lines


class DecisionLogError(WarmrouteError):
    """A path has no decision log to read; the message has the path and the reason."""


class UnreadableLine(NamedTuple):
    """A line that could not be read, and was skipped."""

    path: Path
    line: int  # counting from 1
    why: str
    torn: bool = False  # the unfinished last line of a file, after a crash or while it is being written

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.why}"


Entry = LoggedRecord | LoggedPolicy | UnreadableLine


def find_files(paths: Iterable[Path]) -> list[Path]:
    """Return the decision log files of `paths`, which are files and folders, each once, in the order of their
    names.

    Raises DecisionLogError for a path that does not exist, and for a folder without decision log files.
    """
    found: set[Path] = set()
    for path in paths:
        if path.is_dir():
            found.update(inside := [*list_compressed(path), *list_plain(path)])
            if not inside:
                raise DecisionLogError(
                    f"{path}: there are no decision log files (decisions-*{PLAIN} or decisions-*{COMPRESSED}) in it"
                )
        elif path.exists():
            found.add(path)
        else:
            raise DecisionLogError(f"{path}: there is no such file or folder")
    duplicates = {path for path in found if path.suffix == PLAIN and path.with_suffix(COMPRESSED) in found}
    return sorted(found - duplicates, key=lambda path: (path.name, path))  # compressed, but not removed yet


def read(paths: Iterable[Path], on_progress: Callable[[int], None] | None = None) -> Iterator[Entry]:
    """Return records with the policies that decided them, in each file a policy before its first record.

    `on_progress` gets the number of further bytes read, as stored on disk. Raises `DecisionLogError` as
    `find_files` does, before anything is read.
    """
    return _entries(find_files(paths), on_progress or (lambda _: None))


def _entries(files: list[Path], on_progress: Callable[[int], None]) -> Iterator[Entry]:
    for path in files:
        try:
            file = _open(path)
        except OSError as error:
            yield UnreadableLine(path, 0, f"cannot be opened: {error.strerror}")
            continue
        with file:
            yield from _read(path, file, on_progress)


def _open(path: Path) -> BinaryIO:
    """Open `path`, which may have been compressed since it was found."""
    try:
        return path.open("rb", BUFFER_BYTES)
    except FileNotFoundError:
        if path.suffix != PLAIN:
            raise
        return path.with_suffix(COMPRESSED).open("rb", BUFFER_BYTES)


def _read(path: Path, file: BinaryIO, on_progress: Callable[[int], None]) -> Iterator[Entry]:
    compressed = str(file.name).endswith(".gz")
    number = reported = 0
    version = VERSION
    with BufferedReader(GzipFile(fileobj=file, mode="rb"), BUFFER_BYTES) if compressed else file as lines:
        try:
            for number, line in enumerate(lines, 1):
                entry = _entry(path, number, line if version == VERSION else _rename_fields(line))
                if isinstance(entry, FileHead):
                    version = entry.version
                    if (reason := _incompatibility(entry)) is not None:
                        yield UnreadableLine(path, number, reason)
                        break
                elif entry is not None:
                    yield entry
                if not number % PROGRESS_EVERY:
                    on_progress((at := file.tell()) - reported)
                    reported = at
        except (OSError, EOFError, zlib.error) as error:
            yield UnreadableLine(path, number + 1, f"the file breaks off: {error}")
        on_progress(file.seek(0, SEEK_END) - reported)


def _entry(path: Path, number: int, line: bytes) -> Entry | FileHead | None:
    """Decode one line; None for a kind of line from a later version."""
    if not line.endswith(b"\n"):
        return UnreadableLine(path, number, "the last line is not finished", torn=True)
    try:
        decoded = decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return UnreadableLine(path, number, f"not a line of a decision log: {error}")
    return decoded.record or decoded.policy or decoded.file


def _rename_fields(line: bytes) -> bytes:
    """Return a line of an older format with the field names of the present one. Names in quotes occur only as field
    names, because quotes inside a value are escaped.
    """
    for old, new in OLD_NAMES:
        line = line.replace(old, new)
    return line


def _incompatibility(head: FileHead) -> str | None:
    """Return why this version cannot read the file; None if it can. Views are arrays, so their fields must be in
    order.
    """
    if not OLDEST_VERSION <= head.version <= VERSION:
        return (
            f"written by warmroute {head.warmroute} in format {head.version}; "
            f"this version reads formats {OLDEST_VERSION} to {VERSION}"
        )
    for kind, fields in head.fields.items():
        own = FIELDS.get(kind, [])
        if fields != own[: len(fields)]:
            return f"written by warmroute {head.warmroute}, whose {kind} has other fields: read it with that version"
    return None
