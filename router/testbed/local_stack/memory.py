"""How much memory a stack needs, and how much is there, from Linux' /proc."""

from __future__ import annotations

from pathlib import Path

from router.config.sections.local_stack import LocalStackConfig
from router.errors import WarmrouteError

GIB = 1024**3
ENGINE_BYTES = int(1.6 * GIB)  # Python, torch and vLLM in three processes, without weights, cache and buffers
OTHER_BYTES = GIB // 2  # master, client and router, before they hold anything


class TooLittleMemory(WarmrouteError):
    """The stack would not fit. Says what to make smaller."""


def estimate_bytes(asked: LocalStackConfig, model: Path) -> int:
    """An estimate, in bytes, of what everything takes when caches and pool are full."""
    weights = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    engine = ENGINE_BYTES + weights + asked.kv_cache_bytes + (asked.buffer_bytes if asked.store else 0)
    return asked.engines * engine + OTHER_BYTES + (asked.pool_bytes if asked.store else 0)


def available_bytes(meminfo: Path = Path("/proc/meminfo")) -> int:
    """What can be used without swapping, in bytes."""
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024


def check_memory(asked: LocalStackConfig, model: Path) -> None:
    """Raises TooLittleMemory."""
    want, have = estimate_bytes(asked, model), available_bytes()
    if want > have:
        raise TooLittleMemory(
            f"too little memory: {asked.engines} engines need about {want / GIB:.1f} GiB and {have / GIB:.1f} GiB are "
            f"available: make stack.engines, stack.kv_cache_bytes or stack.pool_bytes smaller"
        )
