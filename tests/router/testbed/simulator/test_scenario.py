from router.testbed.engine_profile import EngineProfile
from router.testbed.simulator.scenario import Scenario

PROFILE = EngineProfile(
    name="test",
    kv_tokens=1000,
    kv_bytes_per_token=1.0,
    us_per_token=1.0,
    ns_per_pair=1.0,
    us_per_decode=1.0,
    weights_ms=1.0,
    ns_per_context_token=1.0,
)


def test_the_first_instances_prefill_for_the_others_where_a_fleet_is_split() -> None:
    whole, split = Scenario(profile=PROFILE, instances=3), Scenario(profile=PROFILE, instances=3, prefills=1)
    assert [whole.role(number) for number in range(3)] == ["both", "both", "both"]
    assert [split.role(number) for number in range(3)] == ["prefill", "decode", "decode"]
