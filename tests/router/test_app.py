"""The wiring, without a network: what the rooms are built of, and the router's own life."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.app import App
from router.backends.discovery.discovery import StaticDiscovery
from router.backends.discovery.dns import DnsDiscovery
from router.backends.discovery.file import FileDiscovery
from router.backends.discovery.kubernetes.discovery import KubernetesDiscovery
from router.clock import ManualClock
from router.config import schema
from router.config.sections.discovery import DnsConfig
from router.control.core import (
    build_configured_policies,
    build_discoveries,
    build_scheduler,
    build_tokenization,
    choose_seed,
)
from router.control.key_secret import resolve_key_secret
from router.control.peers.connect import build_replica_discovery
from router.errors import ConfigError
from router.fleet.engine_facts import ModelCard
from router.kvcache.block_keys import Keyring
from router.kvcache.snapshot_format import SavedIndex
from router.proxy.upstreams import Upstreams
from router.scheduling.experiments.policy_set import PolicySet
from tests.fakes.engines import eventually
from tests.paths import TOKENIZER

RANDOM = {"warm": schema.PolicyConfig.model_validate({"scorers": [{"name": "random"}]})}
CARD = ModelCard("warm-tiny", "/models/warm-tiny", None, 8192)


def config(**changes: object) -> schema.Config:
    return schema.Config.model_validate({"policies": RANDOM, "seed": 1} | changes)


def instance(name: str) -> schema.InstanceConfig:
    return schema.InstanceConfig.model_validate({"name": name, "url": "http://127.0.0.1:1"})


# what the rooms are built of


def test_every_policy_is_built_at_the_start() -> None:
    broken = {"warm": schema.PolicyConfig.model_validate({"scorers": [{"name": "prefix_overlapp"}]})}
    with pytest.raises(ConfigError, match=r"policies\.warm: .*unknown scorer 'prefix_overlapp'.*prefix_overlap"):
        build_configured_policies(config(policies=RANDOM | broken))
    assert list(build_configured_policies(config())) == ["warm"]


def test_discoveries_are_what_the_configuration_names(tmp_path: Path) -> None:
    assert build_discoveries(schema.FleetConfig(), ManualClock()) == {}
    file, name = str(tmp_path / "fleet.yaml"), DnsConfig(name="localhost", port=1)
    built = build_discoveries(schema.FleetConfig(instances=[instance("a")], file=file, dns=name), ManualClock())
    assert [(name, type(discovery)) for name, discovery in built.items()] == [
        ("config", StaticDiscovery),
        ("file", FileDiscovery),
        ("dns", DnsDiscovery),
    ]


def test_the_cores_chance_hangs_on_the_seed_given() -> None:
    def seed(settings: schema.Config) -> int:
        return build_scheduler(
            settings, PolicySet(build_configured_policies(settings), "warm"), Keyring(1), ManualClock()
        ).selector.seed

    assert seed(config(seed=7)) == 7
    assert seed(config(seed=None)) != seed(config(seed=None))


def test_models_without_a_local_tokenizer_ask_their_engines() -> None:
    settings = config(tokenizers={"warm-tiny": {"path": TOKENIZER}, "other": {}})
    tokens = build_tokenization(settings, Keyring(1), Upstreams(connect_timeout_s=1, keepalive_s=1), ManualClock())
    assert list(tokens.report()) == ["warm-tiny"]
    tokens.close()


def test_the_secret_of_block_keys_depends_on_all_of_what_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def secret(given: str) -> int:
        monkeypatch.setenv("KEY_SECRET", given)
        return resolve_key_secret(config(index={"key_secret_env": "KEY_SECRET"}))

    assert secret("warmroute-production-1") == secret("warmroute-production-1")
    shown = {secret(given) for given in ("warmroute-production-1", "warmroute-production-2", "warm", "x", "ü")}
    assert len(shown) == 5, "the first eight characters are often the same"
    assert all(0 <= value < 1 << 64 for value in shown)


def test_without_one_it_is_random() -> None:
    assert resolve_key_secret(config()) != resolve_key_secret(config())


def test_or_a_snapshots_so_that_its_keys_mean_something(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_key_secret(config(), SavedIndex(77, [])) == 77
    monkeypatch.setenv("KEY_SECRET", "warmroute-production-1")
    given = config(index={"key_secret_env": "KEY_SECRET"})
    assert resolve_key_secret(given, SavedIndex(77, [])) == resolve_key_secret(given)


def test_replicas_have_the_same_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that they name sessions by the same pseudonyms, whatever snapshots they had."""
    monkeypatch.setenv("SHARED", "0123456789abcdef")
    replica = config(replicas={"peers": ["10.0.0.1:9004"], "secret_env": "SHARED"})
    assert resolve_key_secret(replica) == resolve_key_secret(replica, SavedIndex(77, []))
    monkeypatch.setenv("KEY_SECRET", "warmroute-production-1")
    given = replica.model_copy(update={"index": schema.IndexConfig(key_secret_env="KEY_SECRET")})
    assert resolve_key_secret(given) == resolve_key_secret(config(index={"key_secret_env": "KEY_SECRET"}))


def test_replicas_with_the_same_seed_draw_differently() -> None:
    """Else all of them would send their next request to the same of several equal targets."""

    def replica(port: int, seed: int | None = 7) -> schema.Config:
        return config(seed=seed, replicas={"peers": ["10.0.0.1:9004"], "secret_env": "SHARED", "port": port})

    assert choose_seed(config(seed=7)) == 7
    assert choose_seed(replica(9004)) == choose_seed(replica(9004))  # the same after a restart
    assert len({7, choose_seed(replica(9004)), choose_seed(replica(9005)), choose_seed(replica(9004, 8))}) == 4
    assert choose_seed(replica(9004, None)) != choose_seed(replica(9004, None))


def test_replicas_are_listed_or_found_by_name_or_by_labels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def built(**where: object) -> object:
        section = {"secret_env": "SHARED", "port": 9014} | where
        api = {"url": "https://10.0.0.1", "token_file": str(tmp_path / "token")}
        kubernetes = {"namespace": "llm", "selector": "app=vllm", "api": api}
        return build_replica_discovery(config(replicas=section, fleet={"kubernetes": kubernetes}), ManualClock(0.0))

    assert build_replica_discovery(config(), ManualClock(0.0)) is None
    assert built(peers=["10.0.0.1:9004"]) is None
    by_name, by_labels = built(dns="routers.llm.svc"), built(selector="app=warmroute")
    assert isinstance(by_name, DnsDiscovery)
    assert (by_name._config.name, by_name._config.port) == ("routers.llm.svc", 9014)
    assert isinstance(by_labels, KubernetesDiscovery)
    assert (by_labels._config.selector, by_labels._config.ports, by_labels._namespace) == (
        "app=warmroute",
        [9014],
        "llm",
    )


# its own life


async def test_ready_from_the_first_ready_instance_until_it_stops() -> None:
    local = {"host": "127.0.0.1", "port": 0}
    app = App(config(listen=local, admin=local, limits={"grace_s": 0.2}, fleet={"instances": [instance("a")]}))
    assert app.unready_reason() == "starting"
    await app.start()
    assert app.unready_reason() == "no instance is ready"
    assert 0 < app.port != app.admin_port > 0
    await eventually(lambda: [member.id for member in app.core.scheduler.fleet] == ["a"])
    app.core.membership.joined("a", [CARD], [])
    assert app.unready_reason() is None
    await app.stop()
    assert app.unready_reason() == "stopping"


async def test_a_port_that_is_taken_is_said_so() -> None:
    local = {"host": "127.0.0.1", "port": 0}
    first = App(config(listen=local, admin=local))
    await first.start()
    second = App(config(listen=local | {"port": first.port}, admin=local))
    with pytest.raises(ConfigError, match=str(first.port)):
        await second.start()
    await second.stop()
    await first.stop()
