"""The decision log's files on disk: what they are called, whose they are, and the one that grows.

    decisions-20261121T095932Z-0001.jsonl           grows; locked by the process that writes it
    decisions-20261121T095932Z-0001.jsonl.gz.tmp    being compressed
    decisions-20261121T095932Z-0001.jsonl.gz        complete: it was renamed once it was, and only then the first went

Names sort by time. A process that dies leaves a plain file that nobody locks any more: whoever finds it compresses it.
So several routers may share a folder (`packing.py` compresses). Everything here blocks, and raises OSError as it comes.
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

STEMS = ("decisions", "ledger")
"""How file names begin: those written now, and those of 0.1, which are still read."""

PLAIN, PACKED, UNFINISHED = ".jsonl", ".jsonl.gz", ".jsonl.gz.tmp"


class OpenLogFile:
    """The file that is written to. Opened, locked and empty; what `write` took is with the kernel at once."""

    def __init__(self, folder: Path, at_wall_s: float, number: int = 1) -> None:
        """`number` sets apart the files of one second; where it is taken, the next free one is."""
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self._file = _created(folder, at_wall_s, number)
        self.bytes = 0

    def write(self, data: bytes) -> None:
        """All of it, or OSError and nothing: what is tried again elsewhere must not stand here too."""
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
        """Raises OSError where others removed or replaced the file: writing would go on without complaint."""
        here, ours = os.stat(self.path), os.fstat(self._file.fileno())
        if (here.st_dev, here.st_ino) != (ours.st_dev, ours.st_ino):
            raise FileNotFoundError(ENOENT, "was replaced while it was written", str(self.path))

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def discard(self) -> None:
        """Closes the file and removes it, unless another one has its name by now."""
        with suppress(OSError):
            self.check()
            self.path.unlink()
        self._file.close()


def _created(folder: Path, at_wall_s: float, number: int) -> tuple[Path, FileIO]:
    time = datetime.fromtimestamp(at_wall_s, UTC).strftime("%Y%m%dT%H%M%SZ")
    for n in count(number):
        path = folder / f"decisions-{time}-{n:04}{PLAIN}"
        if path.with_suffix(PACKED).exists():
            continue
        with suppress(FileExistsError):
            file = FileIO(path, "xb")
            if try_lock(file):
                return path, file
            file.close()  # another process took it for a dead one's, and will remove it
    raise AssertionError("there is always another number")


def try_lock(file: FileIO) -> bool:
    """Whether it is ours now; False: another process writes or compresses it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def list_plain(folder: Path) -> list[Path]:
    return sorted(path for stem in STEMS for path in folder.glob(f"{stem}-*{PLAIN}"))


def list_compressed(folder: Path) -> list[Path]:
    return sorted(path for stem in STEMS for path in folder.glob(f"{stem}-*{PACKED}"))
