"""Command lines and kv-transfer-configs: settings reach the programs, and engines of one host do not collide."""

from __future__ import annotations

import json
from pathlib import Path

from router.config.sections.local_stack import LocalStackConfig
from router.lab.local_stack import commands
from router.lab.local_stack.commands import INSIDE, STORE, EngineExtras, decode, prefill, set_lookup_port
from tests.paths import CONFIGS

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


MOONCAKE = CONFIGS / "mooncake"


def test_the_file_for_the_store_is_what_runs() -> None:
    assert json.loads((MOONCAKE / "store.kv-transfer.json").read_text()) == set_lookup_port(STORE, 0)


def test_the_store_inside_of_many_gets_its_number() -> None:
    transfer = prefill(8998, store=True).transfer
    assert transfer is not None
    peer, store = set_lookup_port(transfer, 8100)["kv_connector_extra_config"]["connectors"]
    assert "lookup_rpc_port" not in peer["kv_connector_extra_config"]
    assert store["kv_connector_extra_config"]["lookup_rpc_port"] == 8100
    assert "lookup_rpc_port" not in STORE["kv_connector_extra_config"]


def test_a_number_that_is_given_stays() -> None:
    given = {**STORE, "kv_connector_extra_config": {"lookup_rpc_port": 5}}
    assert set_lookup_port(given, 8100)["kv_connector_extra_config"]["lookup_rpc_port"] == 5


def test_the_two_sides_of_a_pair() -> None:
    first, second = prefill(8998, store=False), decode(store=False)
    assert first.transfer is not None
    assert second.transfer is not None
    assert (first.transfer["kv_role"], second.transfer["kv_role"]) == ("kv_producer", "kv_consumer")
    assert first.environment["VLLM_MOONCAKE_BOOTSTRAP_PORT"] == "8998"
    assert (first.role, first.bootstrap_url) == ("prefill", "http://127.0.0.1:8998")
    assert (INSIDE / "cpu_connector.py").exists(), "what the kv_connector_module_path names"
