"""Whether a model can answer now. How aliases use it is in `tests/router/features/aliases`."""

from __future__ import annotations

from router.config.schema import FleetConfig, InstanceConfig, TransferProtocol
from router.fleet.engine_facts import ModelCard
from router.fleet.fleet import Fleet
from router.scheduling.availability import find_unavailability
from tests.router.features.aliases.test_aliases import a_fleet


def test_a_model_nobody_serves_has_no_instance() -> None:
    assert find_unavailability(a_fleet(a="llama"), "qwen", None, 16, 0.0) == "no_instance"
    assert find_unavailability(a_fleet(a="llama"), "llama", None, 16, 0.0) is None


def test_an_instance_of_another_revision_is_none() -> None:
    fleet = a_fleet(a="llama@v1")
    assert find_unavailability(fleet, "llama", "v2", 16, 0.0) == "no_instance"
    assert find_unavailability(fleet, "llama", "v1", 16, 0.0) is None


def test_an_instance_that_only_computes_prompts_cannot_answer() -> None:
    fleet = Fleet(FleetConfig())
    transfer = TransferProtocol(protocol="nixl")
    fleet.join(InstanceConfig(url="http://a:1", name="a", role="prefill", transfer=transfer))
    fleet.mark_ready("a", [ModelCard("llama", None, None, None)], [0])
    assert find_unavailability(fleet, "llama", None, 16, 0.0) == "no_instance"
