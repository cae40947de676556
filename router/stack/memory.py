"""How much memory a stack needs, is there, and is used, from Linux' /proc."""

from __future__ import annotations

from collections.abc import Set
from contextlib import suppress
from pathlib import Path

from router.config.stack import Stack
from router.errors import WarmrouteError

GIB = 1024**3
ENGINE_BYTES = int(1.6 * GIB)  # Python, torch and vLLM in three processes, without weights, cache and buffers
OTHER_BYTES = GIB // 2  # master, client and router, before they hold anything


class TooLittleMemory(WarmrouteError):
    """The stack would not fit. Says what to make smaller."""


def needed(asked: Stack, model: Path) -> int:
    """An estimate, in bytes, of what everything takes when caches and pool are full."""
    weights = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    engine = ENGINE_BYTES + weights + asked.kv_cache_bytes + (asked.buffer_bytes if asked.store else 0)
    return asked.engines * engine + OTHER_BYTES + (asked.pool_bytes if asked.store else 0)


def available(meminfo: Path = Path("/proc/meminfo")) -> int:
    """What can be used without swapping, in bytes."""
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024


def demand(asked: Stack, model: Path) -> None:
    """Raises TooLittleMemory."""
    want, have = needed(asked, model), available()
    if want > have:
        raise TooLittleMemory(
            f"too little memory: {asked.engines} engines need about {want / GIB:.1f} GiB and {have / GIB:.1f} GiB are "
            f"available: make stack.engines, stack.kv_cache_bytes or stack.pool_bytes smaller"
        )


def used_by_groups(groups: Set[int]) -> int:
    """Memory of all processes in these process groups, in bytes; what several share is counted once (PSS)."""
    total = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            group = int((process / "stat").read_text().rpartition(")")[2].split()[2])
            if group in groups:
                rollup = dict(line.split(":", 1) for line in (process / "smaps_rollup").read_text().splitlines()[1:])
                total += int(rollup["Pss"].split()[0]) * 1024
    return total
