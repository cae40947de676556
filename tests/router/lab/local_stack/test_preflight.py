"""Checks before a stack starts: ports that are configured, chosen or taken, and the memory that it needs."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from router.config.sections.local_stack import LocalStackConfig
from router.lab.local_stack import preflight
from router.lab.local_stack.preflight import GIB


def test_configured_ports_stay_and_engines_follow_the_first() -> None:
    config = LocalStackConfig(engines=3, first_port=8100, master_port=1, master_http_port=2, client_port=3)
    assert preflight.choose_ports(config) == (config, [8100, 8101, 8102])


def test_zero_is_a_free_port() -> None:
    chosen, engines = preflight.choose_ports(LocalStackConfig(first_port=0, master_port=0, client_port=4))
    assert len(engines) == 2
    assert all(engines)
    assert chosen.master_port > 0
    assert (chosen.client_port, chosen.master_http_port) == (4, 9003)


def test_free_ports_are_not_given_to_others_who_ask_the_system_for_one() -> None:
    ports = preflight.free_ports(50)
    assert len(set(ports)) == 50
    first_ephemeral = int(preflight.EPHEMERAL_PORTS.read_text().split()[0])
    assert all(preflight.LOWEST_PORT <= port < first_ephemeral for port in ports)


def test_free_ports_are_reserved_for_servers() -> None:
    (port,) = preflight.free_ports(1)
    with socket.socket() as other, pytest.raises(OSError, match="Address already in use"):
        other.bind(("127.0.0.1", port))
    for host in ("127.0.0.1", "0.0.0.0"):
        socket.create_server((host, port)).close()
        socket.create_server((host, port), reuse_port=True).close()


def test_a_taken_port_is_refused_in_one_line() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(preflight.PortTaken) as failure:
            preflight.check_ports({"stack.client_port": port})
    assert str(failure.value) == f"port {port} is in use: stop what listens there, or change stack.client_port"
    preflight.check_ports({"stack.client_port": port, "admin.port": 0})


def test_the_estimate_counts_everything_once_per_engine(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    config = LocalStackConfig(engines=3, kv_cache_bytes=10 * GIB, buffer_bytes=GIB, pool_bytes=7 * GIB)
    # three engines of 1.6 GiB, their weights, cache and buffer; half a GiB for the rest; one pool
    assert preflight.estimate_bytes(config, tmp_path) == 3 * (int(1.6 * GIB) + 1000 + 11 * GIB) + GIB // 2 + 7 * GIB
    without = config.model_copy(update={"store": False})
    assert preflight.estimate_bytes(without, tmp_path) == 3 * (int(1.6 * GIB) + 1000 + 10 * GIB) + GIB // 2


def test_available_memory(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:       100 kB\nMemAvailable:    12 kB\nHugePages_Total:   0\n")
    assert preflight.available_bytes(tmp_path / "meminfo") == 12 * 1024


def test_too_little_memory_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(preflight.TooLittleMemory) as failure:
        preflight.check_memory(LocalStackConfig(kv_cache_bytes=10**15), tmp_path)
    assert "reduce stack.engines, stack.kv_cache_bytes or stack.pool_bytes" in str(failure.value)
    assert "\n" not in str(failure.value)
