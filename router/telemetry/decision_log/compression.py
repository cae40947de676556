"""Compresses the decision log's closed files and removes the oldest, in steps of a millisecond.

The thread that writes the decision log does this between two slices of writing: 256 MB take seconds to compress, and
records must not pile up meanwhile. The interpreter is free while zlib works. Files are as in `files.py`; OSError is
raised as it comes, and the file that it was about waits for another turn.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator
from contextlib import suppress
from gzip import GzipFile
from io import FileIO
from pathlib import Path

from router.telemetry.decision_log.files import PACKED, UNFINISHED, list_compressed, list_plain, try_lock

CHUNK_BYTES = 64 * 1024  # a ms of compressing
LEVEL = 6  # 9 takes half as long again for 8 % less, 1 makes files twice as large


class FileCompressor:
    """Closed files, one after the other. `sync`: what is compressed is forced to disk before the plain file goes."""

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
        """A little of the work, when there is some. True: a file is done."""
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
        """What is half done is undone."""
        if self._running is not None:
            self._running.close()
            self._running = None


def compress(path: Path, sync: bool) -> Generator[None, None, None]:
    """Compresses a plain file, in steps of a few ms, and puts the result in its place. Nothing is done to one that
    another process writes, or that is gone. `sync`: the result is forced to disk before the plain one goes.
    """
    unfinished = path.with_suffix(UNFINISHED)
    with suppress(FileNotFoundError), FileIO(path, "rb") as plain:
        if not try_lock(plain):
            return
        try:
            with FileIO(unfinished, "wb") as raw:
                with GzipFile(filename="", mode="wb", compresslevel=LEVEL, fileobj=raw) as packed:
                    while chunk := plain.read(CHUNK_BYTES):
                        packed.write(chunk)
                        yield
                if sync:
                    os.fsync(raw.fileno())
            unfinished.replace(path.with_suffix(PACKED))
            if sync:
                _sync_folder(path.parent)
            path.unlink()
        finally:
            unfinished.unlink(missing_ok=True)


def prune(folder: Path, keep_bytes: int) -> int:
    """Removes the oldest compressed files while all files together are larger; the number of those removed."""
    packed = list_compressed(folder)
    sizes = {path: _size(path) for path in [*packed, *list_plain(folder)]}
    excess, removed = sum(sizes.values()) - keep_bytes, 0
    for path in packed:
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
