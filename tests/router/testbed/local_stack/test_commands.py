"""Command lines: what the configuration says reaches the programs, and engines of one host keep apart."""

from __future__ import annotations

import json
from pathlib import Path

from router.config.sections.local_stack import LocalStackConfig
from router.testbed.local_stack import commands
from router.testbed.local_stack.kv_transfer_config import EngineExtras

VENV = Path("/venv")
STACK = LocalStackConfig(model="/models/mid", master_port=7001, master_http_port=7002, client_port=7003, lease_ms=1234)


def value(command: list[str], flag: str) -> str:
    assert command.count(flag) == 1
    return command[command.index(flag) + 1]


def engine(port: int = 8100, mooncake: Path | None = Path("/logs/mooncake.json"), extra: EngineExtras | None = None):  # type: ignore[no-untyped-def]
    return commands.engine(STACK, commands.EngineProcess("engine-0", port, VENV, mooncake, 1), extra or EngineExtras())


def test_the_master_is_where_the_section_says() -> None:
    program = commands.master(STACK, VENV)
    assert program.command[0] == "/venv/bin/mooncake_master"
    assert {"-rpc_port=7001", "-metrics_port=7002", "-default_kv_lease_ttl=1234"} <= set(program.command)
    assert {"-rpc_address=127.0.0.1", "-metrics_host=127.0.0.1"} <= set(program.command)
    assert program.ready == "http://127.0.0.1:7002/health"


def test_the_client_owns_the_memory_and_engines_bring_none() -> None:
    program = commands.client(STACK, VENV)
    assert f"-global_segment_size={2048 * 1024 * 1024}" in program.command
    assert program.ready == "tcp://127.0.0.1:7003"
    config = commands.mooncake_config(STACK)
    assert (config["mode"], config["global_segment_size"]) == ("standalone-store", 0)
    assert config["master_server_address"] == "127.0.0.1:7001"


def test_an_engine_tells_what_the_router_needs() -> None:
    program = engine()
    assert value(program.command, "--prefix-caching-hash-algo") == "sha256_cbor"
    assert json.loads(value(program.command, "--kv-events-config"))["enable_kv_cache_events"] is True
    assert "--enable-prompt-tokens-details" in program.command
    assert program.environment["MOONCAKE_CONFIG_PATH"] == "/logs/mooncake.json"
    assert (Path(program.environment["PYTHONPATH"]) / "sitecustomize.py").exists()
    transfer = json.loads(value(program.command, "--kv-transfer-config"))
    assert (transfer["kv_connector"], transfer["kv_role"]) == ("MooncakeStoreConnector", "kv_both")
    assert transfer["kv_load_failure_policy"] == "recompute"


def test_two_engines_have_two_lookup_sockets() -> None:
    numbers = [
        json.loads(value(engine(port).command, "--kv-transfer-config"))["kv_connector_extra_config"]["lookup_rpc_port"]
        for port in (8100, 8101)
    ]
    assert numbers == [8100, 8101]


def test_without_a_store_nothing_of_it_is_left() -> None:
    program = engine(mooncake=None)
    assert "--kv-transfer-config" not in program.command
    assert "MOONCAKE_CONFIG_PATH" not in program.environment


def test_an_allocator_is_taken_when_there_is_one() -> None:
    place = commands.EngineProcess("engine-0", 8100, VENV, None, 1, Path("/usr/lib/x/libtcmalloc_minimal.so.4"))
    assert (
        commands.engine(STACK, place, EngineExtras()).environment["LD_PRELOAD"] == "/usr/lib/x/libtcmalloc_minimal.so.4"
    )
    assert "LD_PRELOAD" not in engine().environment


def test_an_engine_may_differ() -> None:
    program = engine(extra=EngineExtras(("--seed", "7"), {"OMP_NUM_THREADS": "2"}))
    assert program.command[-2:] == ["--seed", "7"]
    assert program.environment["OMP_NUM_THREADS"] == "2"
