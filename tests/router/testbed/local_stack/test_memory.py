"""Memory: the estimate, what is there, what is used."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.config.sections.local_stack import LocalStackConfig
from router.testbed.local_stack import memory
from router.testbed.local_stack.memory import GIB


def test_the_estimate_counts_everything_once_per_engine(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    asked = LocalStackConfig(engines=3, kv_cache_bytes=10 * GIB, buffer_bytes=GIB, pool_bytes=7 * GIB)
    # three engines of 1.6 GiB, their weights, cache and buffer; half a GiB for the rest; one pool
    assert memory.estimate_bytes(asked, tmp_path) == 3 * (int(1.6 * GIB) + 1000 + 11 * GIB) + GIB // 2 + 7 * GIB
    without = asked.model_copy(update={"store": False})
    assert memory.estimate_bytes(without, tmp_path) == 3 * (int(1.6 * GIB) + 1000 + 10 * GIB) + GIB // 2


def test_what_is_available(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:       100 kB\nMemAvailable:    12 kB\nHugePages_Total:   0\n")
    assert memory.available_bytes(tmp_path / "meminfo") == 12 * 1024


def test_too_little_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(memory.TooLittleMemory) as failure:
        memory.check_memory(LocalStackConfig(kv_cache_bytes=10**15), tmp_path)
    assert "make stack.engines, stack.kv_cache_bytes or stack.pool_bytes smaller" in str(failure.value)
    assert "\n" not in str(failure.value)
