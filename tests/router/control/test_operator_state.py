"""What operators have set goes from one process to the next, as bytes, and with what is configured by then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from router.config import schema
from router.control.operator_state import (
    NOTHING,
    OperatorStateFile,
    decode_state,
    encode_state,
    find_state_file,
    forget_state,
    read_state,
)
from router.control.peers.policies import SharedPolicies
from router.control.switch import DecisionVersion
from router.fleet.engine_facts import ModelCard
from router.scheduling.experiments.results import Finding
from tests.router.control.control_plane import EXPERIMENT, ControlPlane, experiment
from tests.router.control.peers.memory_network import MemoryNetwork

CARDS = [ModelCard("m", "/m", None, 8192)]
TOO_SLOW = Finding("far", "limit", "ttft_p90_max_ms", "too slow", 10, 1e6, None, None)


def joined(plane: ControlPlane, *names: str) -> ControlPlane:
    """With these instances, ready."""
    for name in names:
        plane.core.fleet.join(schema.InstanceConfig(url=f"http://{name}:8000", name=name))
        plane.core.add_instance(name, CARDS, [])
    return plane


def next_of(plane: ControlPlane, **configured: Any) -> ControlPlane:
    """The process that comes next, with this configuration."""
    fresh = ControlPlane(**configured)
    fresh.control.restore(decode_state(encode_state(plane.control.collect_state()), "it"))
    return fresh


def drained(plane: ControlPlane) -> list[str]:
    return [instance.id for instance in plane.core.fleet if instance.drained]


async def test_what_operators_set_is_in_force_at_the_next_process_and_the_one_after() -> None:
    plane = joined(ControlPlane(), "a", "b")
    plane.core.drain("a", True)
    plane.core.drain("b", True)
    plane.core.drain("b", False)
    await plane.control.put_policy("new", "scorers: [{name: least_requests}]", "ada", activate=True)
    second = next_of(plane)
    assert second.control.collect_state().in_words == ["a drained", "put policy new and activate it by ada"]
    third = joined(next_of(second), "b", "a")
    assert (drained(third), third.active) == (["a"], "new")
    assert third.control.collect_state() == plane.control.collect_state()


async def test_settings_that_changed_in_the_configuration_meanwhile_take_precedence() -> None:
    plane = ControlPlane(active="near")
    await plane.control.activate("far", "ada")
    assert next_of(plane, active="near").active == "far"
    changed = next_of(plane, active="other")
    assert changed.active == "other"
    assert changed.control.collect_state() == NOTHING


async def test_what_is_undone_is_not_kept() -> None:
    plane = ControlPlane()
    await plane.control.activate("far", "ada")
    await plane.control.undo("ada")
    assert plane.control.collect_state() == NOTHING


async def test_an_experiment_goes_on_without_the_arms_that_were_rolled_back() -> None:
    plane = ControlPlane()
    await plane.control.start_experiment(EXPERIMENT, "ada")
    plane.control.handle_finding(TOO_SLOW)
    policy_set = next_of(plane).control.policy_set
    assert policy_set.experiment == plane.control.policy_set.experiment is not None
    assert policy_set.rolled_back == {"far"}


async def test_an_arm_of_a_configured_experiment_stays_out_without_an_audit_log() -> None:
    plane = ControlPlane(running=experiment())
    plane.control.handle_finding(TOO_SLOW)
    assert next_of(plane, running=experiment()).control.policy_set.rolled_back == {"far"}


async def test_a_policy_of_another_version_is_named_and_the_rest_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    plane = joined(ControlPlane(), "a")
    plane.core.drain("a", True)
    await plane.control.activate("far", "ada")
    data = encode_state(plane.control.collect_state()).replace(b"least_requests", b"not_installed_here")
    fresh = ControlPlane()
    fresh.control.restore(decode_state(data, "it"))
    assert "activate far by ada is not in force any more" in caplog.text
    assert "not_installed_here" in caplog.text
    assert (drained(joined(fresh, "a")), fresh.active) == (["a"], "near")


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"drains": [{"instance": 1}]}', b"\xff"])
def test_what_cannot_be_read_is_named(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    assert decode_state(data, "audit.jsonl.state") == NOTHING
    assert "audit.jsonl.state cannot be read, drains and policies start as configured" in caplog.text


async def test_peers_know_the_decision_that_was_kept_and_a_later_one_counts_more() -> None:
    network = MemoryNetwork()
    plane = ControlPlane()
    SharedPolicies(plane.control, network.join("one", "one"))
    await plane.control.activate("far", "ada")
    await plane.control.activate("other", "ada")
    kept = next_of(plane)
    shared = SharedPolicies(kept.control, network.join("two", "two"))
    assert shared.version == DecisionVersion(2, "one", 0, "")
    await kept.control.activate("near", "ada")
    assert shared.version == DecisionVersion(3, "two", 0, "")


async def test_the_file_has_every_change_and_survives_what_it_cannot_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plane = joined(ControlPlane(), "a")
    file = find_state_file(tmp_path / "folder" / "audit.jsonl")
    assert file is not None
    written = OperatorStateFile(file, plane.control.collect_state)
    assert not await written.flush()
    assert "a restart will not know what operators set" in caplog.text
    file.parent.mkdir()
    plane.core.drain("a", True)
    assert await written.flush()
    assert decode_state(read_state(file), "") == plane.control.collect_state()
    assert file.stat().st_mode & 0o077 == 0
    assert [one.name for one in file.parent.iterdir()] == [file.name]
    forget_state(tmp_path / "folder" / "audit.jsonl")
    forget_state(tmp_path / "folder" / "audit.jsonl")
    caplog.clear()
    assert read_state(file) == b""
    assert caplog.text == ""
