"""The decision log's files on disk: their names, their locks, and the file being written.

    decisions-20261121T095932Z-0001.jsonl           being written; locked by the process that writes it
    decisions-20261121T095932Z-0001.jsonl.gz.tmp    being compressed
    decisions-20261121T095932Z-0001.jsonl.gz        complete: renamed when complete, then the plain file was removed

Names sort by time. A process that dies leaves a plain file without a lock, which the next process that finds it
compresses. So several routers may share a folder (`compression.py` compresses). All functions block, and pass
`OSError` on.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from datetime import UTC, datetime
from errno import ENOENT
from io import FileIO
from itertools import count
from pathlib import Path
from tempfile import TemporaryFile

from router.config.private_files import open_private

STEMS = ("decisions", "ledger")
"""Prefixes of file names: the current one, and the one of version 0.1, which is still read."""

PLAIN, COMPRESSED, UNFINISHED = ".jsonl", ".jsonl.gz", ".jsonl.gz.tmp"


def create_folder(folder: Path) -> None:
    """Create the folder if it is missing, and a file in it, which is gone at once. Raises OSError if either fails."""
    folder.mkdir(parents=True, exist_ok=True)
    TemporaryFile(dir=folder).close()


class OpenLogFile:
    """The file being written: created, locked and empty at first. `write` hands data to the kernel at once."""

    def __init__(self, folder: Path, at_wall_s: float, number: int = 1) -> None:
        """Create the file. `number` distinguishes files of one second; the next free one is used."""
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self._file = _create(folder, at_wall_s, number)
        self.bytes = 0

    def write(self, data: bytes) -> None:
        """Write all of `data`, or raise OSError and leave none of it: the caller retries in another file."""
        left = memoryview(data)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError:
            with suppress(OSError):
                self._file.truncate(self.bytes)
            raise
        self.bytes += len(data)

    def check(self) -> None:
        """Raise `FileNotFoundError` if the file was removed or replaced: writes would still succeed."""
        here, ours = os.stat(self.path), os.fstat(self._file.fileno())
        if (here.st_dev, here.st_ino) != (ours.st_dev, ours.st_ino):
            raise FileNotFoundError(ENOENT, "was replaced while it was being written", str(self.path))

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def discard(self) -> None:
        """Close the file and remove it, unless another file has its name by now."""
        with suppress(OSError):
            self.check()
            self.path.unlink()
        self._file.close()


def _create(folder: Path, at_wall_s: float, number: int) -> tuple[Path, FileIO]:
    time = datetime.fromtimestamp(at_wall_s, UTC).strftime("%Y%m%dT%H%M%SZ")
    for n in count(number):
        path = folder / f"decisions-{time}-{n:04}{PLAIN}"
        if path.with_suffix(COMPRESSED).exists():
            continue
        with suppress(FileExistsError):
            file = FileIO(path, "xb", opener=open_private)
            if try_lock(file):
                return path, file
            file.close()  # another process took the file for an abandoned one, and will remove it
    raise AssertionError("there is always another number")


def try_lock(file: FileIO) -> bool:
    """Lock `file`; return False when another process writes or compresses it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def list_plain(folder: Path) -> list[Path]:
    return sorted(path for stem in STEMS for path in folder.glob(f"{stem}-*{PLAIN}"))


def list_compressed(folder: Path) -> list[Path]:
    return sorted(path for stem in STEMS for path in folder.glob(f"{stem}-*{COMPRESSED}"))
