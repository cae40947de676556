"""Opens and replaces files that hold names or prompts of clients, which only the router's own user may read.

Code that writes a log, database or report passes `open_private` as the `opener` of `open` and `FileIO`. The
process's umask is left alone, because it would also change what child processes write.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def open_private(path: str | os.PathLike[str], flags: int) -> int:
    """Open `path` and return its descriptor. A new file gets the mode 0600, an existing file keeps its own."""
    return os.open(path, flags, 0o600)


def replace_private(path: Path, pieces: Iterable[bytes], *, durable: bool = False) -> None:
    """Replace `path` in one step by a file of these pieces with the mode 0600. `durable`: a crash of the machine does
    not undo it. Raises OSError, and then leaves no unfinished file behind.
    """
    fresh = unfinished(path)
    fresh.unlink(missing_ok=True)  # an existing file would keep its own permissions
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            for piece in pieces:
                file.write(piece)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


def unfinished(path: Path) -> Path:
    """Return the file that becomes `path` when it is complete."""
    return path.with_name(f"{path.name}.new")
