"""Opens files that hold names or prompts of clients, which only the router's own user may read.

Code that writes a log, database or report passes `open_private` as the `opener` of `open` and `FileIO`. The
process's umask is left alone, because it would also change what child processes write.
"""

from __future__ import annotations

import os


def open_private(path: str | os.PathLike[str], flags: int) -> int:
    """Open `path` and return its descriptor. A new file gets the mode 0600, an existing file keeps its own."""
    return os.open(path, flags, 0o600)
