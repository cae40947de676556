"""Limits of this machine and process, as Linux reports them."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from router.operate.doctor.subject import HostFacts

CGROUP_MEMORY = ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes")
UNLIMITED_BYTES = 1 << 60  # cgroup v1 reports at least such a number if there is no limit


def read_host(root: Path = Path("/")) -> HostFacts:
    """Return the limits; proc and sys are mounted below `root`."""
    ports = _numbers(root / "proc/sys/net/ipv4/ip_local_port_range")
    memory = [number for name in CGROUP_MEMORY for number in _numbers(root / name) if number < UNLIMITED_BYTES]
    return HostFacts(
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        somaxconn=next(iter(_numbers(root / "proc/sys/net/core/somaxconn")), None),
        local_ports=ports[1] - ports[0] + 1 if len(ports) == 2 else None,
        memory_bytes=min(memory, default=None),
        cores=len(os.sched_getaffinity(0)),
    )


def _numbers(file: Path) -> list[int]:
    try:
        return [int(word) for word in file.read_text().split() if word.isdigit()]
    except OSError:
        return []
