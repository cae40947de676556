"""Who can hand KV to whom."""

from __future__ import annotations

from typing import Any

import pytest

from router.config import schema
from router.fleet.fleet import Fleet
from router.fleet.instance import Target
from router.scheduling.prefill_peers import MooncakePeer, PrefillPeers

MOONCAKE = {"protocol": "mooncake", "bootstrap_url": "http://boot:8998"}
NIXL = {"protocol": "nixl"}


class Scene:
    def __init__(self) -> None:
        self.fleet = Fleet(schema.FleetConfig())
        self.peers = PrefillPeers()

    def join(
        self, name: str, role: str, transfer: dict[str, Any] | None, ranks: int = 1, revision: str | None = None
    ) -> Target:
        """The target of its last rank."""
        config = schema.InstanceConfig.model_validate(
            {"url": f"http://{name}:8000", "name": name, "role": role, "transfer": transfer, "revision": revision}
        )
        self.fleet.join(config)
        self.fleet.mark_ready(name, [], set(range(ranks)))
        self.peers.add(config)
        target = self.fleet.target(f"{name}/{ranks - 1}")  # type: ignore[arg-type]
        assert target is not None
        return target


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_only_prefill_instances_never_answer(scene: Scene) -> None:
    assert not scene.peers
    targets = {role: scene.join(role, role, NIXL) for role in ("both", "decode", "prefill")}
    assert {role: scene.peers.is_prefill_only(target) for role, target in targets.items()} == {
        "both": False, "decode": False, "prefill": True,
    }  # fmt: skip
    assert scene.peers
    scene.peers.remove("prefill")
    assert not scene.peers


def test_both_sides_are_of_one_revision(scene: Scene) -> None:
    old, new, unknown = (scene.join(f"d{n}", "decode", NIXL, revision=n) for n in ("1", "2", None))
    feeding = [scene.join(f"p{n}", "prefill", NIXL, revision=n) for n in ("1", "2", None)]
    assert [scene.peers.peers_for(target, feeding) for target in (old, new, unknown)] == [[peer] for peer in feeding]
    assert not scene.peers.unpaired
    assert scene.peers.peers_for(new, [feeding[0], feeding[2]]) == []
    assert scene.peers.unpaired == {"revision": 1}


def test_both_sides_speak_one_protocol(scene: Scene) -> None:
    decoding, silent = scene.join("d", "decode", NIXL), scene.join("s", "both", None)
    near, far = scene.join("n", "prefill", NIXL), scene.join("m", "prefill", MOONCAKE)
    assert scene.peers.peers_for(decoding, [near, far]) == [near]
    assert scene.peers.peers_for(decoding, [far]) == []
    assert scene.peers.peers_for(silent, [near, far, scene.join("x", "prefill", None)]) == []
    assert scene.peers.unpaired == {"protocol": 2}


def test_mooncake_wants_the_engine_of_the_very_rank_named(scene: Scene) -> None:
    decoding, prefilling = scene.join("d", "decode", MOONCAKE), scene.join("p", "prefill", MOONCAKE, ranks=2)
    assert scene.peers.peers_for(decoding, [prefilling]) == []
    scene.peers.set_engine_ids("p", {0: "e0"})
    assert scene.peers.peers_for(decoding, [prefilling]) == []
    assert scene.peers.unpaired == {"engine_id": 2}
    scene.peers.set_engine_ids("p", {0: "e0", 1: "e1"})
    assert scene.peers.peers_for(decoding, [prefilling]) == [prefilling]
    assert scene.peers.mooncake_peer(prefilling) == MooncakePeer("http://boot:8998", "e1")


@pytest.mark.parametrize("event", ["forget_engine_ids", "add", "remove"])
def test_a_name_is_good_for_one_process(scene: Scene, event: str) -> None:
    prefilling = scene.join("p", "prefill", MOONCAKE)
    scene.peers.set_engine_ids("p", {0: "e0"})
    assert scene.peers.without_engine_ids() == []
    if event == "add":
        scene.peers.add(prefilling.instance.config)
    else:
        getattr(scene.peers, event)("p")
    assert scene.peers.mooncake_peer(prefilling) is None
    assert scene.peers.without_engine_ids() == ([] if event == "remove" else ["p"])
    if event == "remove":
        scene.peers.set_engine_ids("p", {0: "late"})
        assert scene.peers.mooncake_peer(prefilling) is None
