"""Decision log files back into records: streaming, in constant memory, in the order of their names.

Nothing that stands in a file can end a reading. A last line without its end is what a crash leaves; any other line that
cannot be read is damage; both come out as `UnreadableLine`, with the place and the reason. Files may be plain or
compressed, and may still be written, compressed or removed meanwhile.
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
from router.telemetry.decision_log.files import PACKED, PLAIN, list_compressed, list_plain
from router.telemetry.decision_log.format import (
    FIELDS,
    OLD_NAMES,
    OLDEST_READ,
    VERSION,
    FileHead,
    LoggedPolicy,
    LoggedRecord,
    decode,
)

BUFFER_BYTES = 256 * 1024
TELL_EVERY = 256  # lines


class DecisionLogError(WarmrouteError):
    """There is nothing to read where somebody was told to read. `str()` says what and where."""


class UnreadableLine(NamedTuple):
    """What could not be read, and was passed over."""

    path: Path
    line: int  # counting from 1
    why: str
    torn: bool = False  # the unfinished last line of a file: a crash, or it is being written

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.why}"


Entry = LoggedRecord | LoggedPolicy | UnreadableLine


def find_files(paths: Iterable[Path]) -> list[Path]:
    """Every decision log file among them: of a folder, all; each once, in the order of their names.

    Raises DecisionLogError for a path that is not there, and for a folder without any.
    """
    found: set[Path] = set()
    for path in paths:
        if path.is_dir():
            found.update(inside := [*list_compressed(path), *list_plain(path)])
            if not inside:
                raise DecisionLogError(
                    f"{path}: there are no decision log files (decisions-*{PLAIN} or decisions-*{PACKED}) in it"
                )
        elif path.exists():
            found.add(path)
        else:
            raise DecisionLogError(f"{path}: there is no such file or folder")
    twice = {path for path in found if path.suffix == PLAIN and path.with_suffix(PACKED) in found}
    return sorted(found - twice, key=lambda path: (path.name, path))  # one compressed, but not yet removed: once


def read(paths: Iterable[Path], passed: Callable[[int], None] | None = None) -> Iterator[Entry]:
    """Records with the policies that decided them, each policy before its first record of every file.

    `passed` is told how many bytes more of the files have been read, as they lie on disk. Raises DecisionLogError as
    `find_files` does, before anything is read.
    """
    return _entries(find_files(paths), passed or (lambda _: None))


def _entries(files: list[Path], passed: Callable[[int], None]) -> Iterator[Entry]:
    for path in files:
        try:
            file = _opened(path)
        except OSError as error:
            yield UnreadableLine(path, 0, f"cannot be opened: {error.strerror}")
            continue
        with file:
            yield from _read(path, file, passed)


def _opened(path: Path) -> BinaryIO:
    """It may have been compressed since it was found."""
    try:
        return path.open("rb", BUFFER_BYTES)
    except FileNotFoundError:
        if path.suffix != PLAIN:
            raise
        return path.with_suffix(PACKED).open("rb", BUFFER_BYTES)


def _read(path: Path, file: BinaryIO, passed: Callable[[int], None]) -> Iterator[Entry]:
    packed = str(file.name).endswith(".gz")
    number = told = 0
    version = VERSION
    with BufferedReader(GzipFile(fileobj=file, mode="rb"), BUFFER_BYTES) if packed else file as lines:
        try:
            for number, line in enumerate(lines, 1):
                entry = _entry(path, number, line if version == VERSION else _renamed(line))
                if isinstance(entry, FileHead):
                    version = entry.version
                    if (strange := _strange(entry)) is not None:
                        yield UnreadableLine(path, number, strange)
                        break
                elif entry is not None:
                    yield entry
                if not number % TELL_EVERY:
                    passed((at := file.tell()) - told)
                    told = at
        except (OSError, EOFError, zlib.error) as error:
            yield UnreadableLine(path, number + 1, f"the file breaks off: {error}")
        passed(file.seek(0, SEEK_END) - told)


def _entry(path: Path, number: int, line: bytes) -> Entry | FileHead | None:
    """None: a kind of line that a later version wrote."""
    if not line.endswith(b"\n"):
        return UnreadableLine(path, number, "the last line is not finished", torn=True)
    try:
        read = decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return UnreadableLine(path, number, f"not a line of a ledger: {error}")
    return read.record or read.policy or read.file


def _renamed(line: bytes) -> bytes:
    """Return a line of an older format with the field names of this one. Names in quotes occur only as field names:
    text inside a value has its quotes escaped.
    """
    for old, new in OLD_NAMES:
        line = line.replace(old, new)
    return line


def _strange(head: FileHead) -> str | None:
    """Why this version cannot read the file: views are arrays, so their fields must stand where we look for them."""
    if not OLDEST_READ <= head.version <= VERSION:
        return (
            f"written by warmroute {head.warmroute} in format {head.version}; "
            f"this version reads formats {OLDEST_READ} to {VERSION}"
        )
    for kind, fields in head.fields.items():
        ours = FIELDS.get(kind, [])
        if fields != ours[: len(fields)]:
            return f"written by warmroute {head.warmroute}, whose {kind} has other fields: read it with that version"
    return None
