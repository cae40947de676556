"""Compresses the decision log's closed files and removes the oldest ones, in steps of a millisecond.

The thread that writes the decision log compresses between two slices of writing: 256 MB take seconds to compress,
and records must not pile up meanwhile. zlib releases the interpreter lock while it works. Files are as in
`files.py`; `OSError` is passed on, and the file concerned goes to the end of the queue.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator
from contextlib import suppress
from gzip import GzipFile
from io import FileIO
from pathlib import Path

from router.config.private_files import open_private
from router.features.decision_log.files import COMPRESSED, UNFINISHED, list_compressed, list_plain, try_lock

CHUNK_BYTES = 64 * 1024  # takes a ms to compress
LEVEL = 6  # 9 takes half as long again for 8 % less, 1 makes files twice as large


class FileCompressor:
    """Compresses closed files one after the other. `sync`: fsync each result before the plain file is removed."""

    def __init__(self, folder: Path, keep_bytes: int, sync: bool) -> None:
        self._folder, self._keep_bytes, self._sync = folder, keep_bytes, sync
        self._waiting: deque[Path] = deque()
        self._running: Generator[None, None, None] | None = None

    @property
    def busy(self) -> bool:
        return bool(self._waiting)

    def add(self, path: Path) -> None:
        self._waiting.append(path)

    def step(self) -> bool:
        """Do a step of the work, if there is any; return whether a file was finished."""
        if not self._waiting:
            return False
        if self._running is None:
            self._running = compress(self._waiting[0], self._sync)
        try:
            next(self._running)
        except StopIteration:
            self._running = None
            self._waiting.popleft()
            prune(self._folder, self._keep_bytes)
            return True
        except OSError:
            self._running = None
            self._waiting.rotate(-1)
            raise
        return False

    def stop(self) -> None:
        """Stop, and remove a half-compressed file."""
        if self._running is not None:
            self._running.close()
            self._running = None


def compress(path: Path, sync: bool) -> Generator[None, None, None]:
    """Compress a plain file in steps of a few ms, and replace the file by the result. A file that another process
    writes, or that is gone, is left alone. `sync`: fsync the result before the plain file is removed.
    """
    unfinished = path.with_suffix(UNFINISHED)
    with suppress(FileNotFoundError), FileIO(path, "rb") as plain:
        if not try_lock(plain):
            return
        try:
            unfinished.unlink(missing_ok=True)  # a file left by a killed process would keep its permissions
            with FileIO(unfinished, "xb", opener=open_private) as raw:
                with GzipFile(filename="", mode="wb", compresslevel=LEVEL, fileobj=raw) as compressed:
                    while chunk := plain.read(CHUNK_BYTES):
                        compressed.write(chunk)
                        yield
                if sync:
                    os.fsync(raw.fileno())
            unfinished.replace(path.with_suffix(COMPRESSED))
            if sync:
                _sync_folder(path.parent)
            path.unlink()
        finally:
            unfinished.unlink(missing_ok=True)


def prune(folder: Path, keep_bytes: int) -> int:
    """Remove the oldest compressed files while all files together exceed `keep_bytes`; return how many."""
    compressed = list_compressed(folder)
    sizes = {path: _size(path) for path in [*compressed, *list_plain(folder)]}
    excess, removed = sum(sizes.values()) - keep_bytes, 0
    for path in compressed:
        if excess <= 0:
            break
        path.unlink(missing_ok=True)
        excess -= sizes[path]
        removed += 1
    return removed


def _size(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
