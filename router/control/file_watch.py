"""Tells that something changed among the operator's files.

Folders are watched, not files: an editor replaces the file, and a ConfigMap's update turns a symlink (`..data`) two
steps away from it. So every folder on the way to a file counts, through each symlink, and where these have moved the
watch is set up anew. What changed is not said: whoever asks reads all of it again, which costs a millisecond.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing
from pathlib import Path

from watchfiles import Change, awatch

log = logging.getLogger("warmroute.files")

DEBOUNCE_MS = 1000  # a change that goes on for so long is told of before its end
STEP_MS = 50  # quiet for so long: it is complete
LOOK_EVERY_S = 1.0  # for folders that came, went or were replaced: a watch on one that is gone is silent
MOST_LINKS = 40  # the kernel's own bound

Folders = Mapping[Path, tuple[int, int] | None]  # device and inode; None: it is not there


async def watch_changes(paths: Callable[[], Iterable[Path]], look_every_s: float = LOOK_EVERY_S) -> AsyncIterator[None]:
    """After every change of the files and folders that `paths` names at that time, and when a watch has just been set
    up: what happened before that was not seen. A folder that is missing is complained of once, and looked for.

    Ends by being cancelled only.
    """
    complained: set[Path] = set()
    while True:
        before = find_folders(paths())
        missing = {folder for folder, identity in before.items() if identity is None}
        for folder in sorted(missing - complained):
            log.error("no such folder, looking for it every %g s: %s", look_every_s, folder)
        complained = missing
        fresh = True
        async with aclosing(_ticks(before, frozenset(path.name for path in paths()), look_every_s)) as ticks:
            async for changed in ticks:
                if changed or fresh:
                    yield
                fresh = False
                if find_folders(paths()) != before:
                    break


async def _ticks(watched: Folders, names: frozenset[str], every_s: float) -> AsyncGenerator[bool]:
    """True for a change, False when there was none for a while."""
    there = [folder for folder, identity in watched.items() if identity is not None]

    def worth_reading(change: Change, path: str) -> bool:
        """Not the logs beside the configuration."""
        name = Path(path).name
        return name in names or name.startswith("..") or Path(path).suffix in ("", ".yaml", ".yml")

    try:
        async for found in awatch(
            *there,
            watch_filter=worth_reading,
            debounce=DEBOUNCE_MS,
            step=STEP_MS,
            rust_timeout=max(1, int(every_s * 1000)),
            yield_on_timeout=True,
            recursive=False,
        ):
            yield bool(found)
    except OSError as error:  # one is gone since we looked, or there are no more inotify watches
        log.error("files cannot be watched, trying again in %g s: %s", every_s, error)
        await asyncio.sleep(every_s)


def find_folders(paths: Iterable[Path]) -> Folders:
    """Where something has to happen for one of `paths` to be another: its folder, and those of all symlinks on the way.
    Of a folder: itself and those of the symlinks in it, too.
    """
    found: set[Path] = set()
    for path in paths:
        found |= _on_the_way(path.absolute())
        if path.is_dir():
            found.add(path.resolve())
            for link in path.iterdir():
                found |= _on_the_way(link.absolute()) if link.is_symlink() else set()
    return {folder: _identity(folder) for folder in found}


def _on_the_way(path: Path, links: int = 0) -> set[Path]:
    found = {path.parent}
    for part in (path, *path.parents):
        if part.is_symlink() and links < MOST_LINKS:
            found.add(part.parent)
            found |= _on_the_way(part.parent / part.readlink() / path.relative_to(part), links + 1)
            break
    return found


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        told = folder.stat()
    except OSError:
        return None
    return (told.st_dev, told.st_ino) if folder.is_dir() else None
