"""Trace files on disk: lines out, packed where the name says so.

A file that could not be written to its end is removed: half a trace looks like a whole one.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import BinaryIO

from router.errors import ConfigError, WarmrouteError


def write_lines(file: Path, lines: Iterable[bytes]) -> int:
    """How many there were. Raises ConfigError for a name that says no format, WarmrouteError where it cannot write."""
    if not file.name.endswith((".jsonl", ".jsonl.gz")):
        raise ConfigError(f"--out: {file}: wanted a name that ends in .jsonl or .jsonl.gz")
    unfinished = file.with_name(file.name + ".tmp")
    count = 0
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("wb") as disk, _packed(disk) if file.suffix == ".gz" else nullcontext(disk) as out:
            for line in lines:
                out.write(line)
                count += 1
        unfinished.replace(file)
    except OSError as failure:
        raise WarmrouteError(f"--out: {file}: {(failure.strerror or str(failure)).lower()}") from failure
    finally:
        with suppress(OSError):
            unfinished.unlink()
    return count


def _packed(disk: BinaryIO) -> gzip.GzipFile:
    """Without name and time, so that the same lines are the same bytes."""
    return gzip.GzipFile("", "wb", fileobj=disk, mtime=0)
