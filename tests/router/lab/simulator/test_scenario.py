from dataclasses import replace

from router.config.schema import PolicyConfig, SpeedPrior
from router.lab.engine_profile import EngineProfile
from router.lab.simulator.event_queue import EventQueue
from router.lab.simulator.router import SimulatedRouter
from router.lab.simulator.scenario import Presence, Scenario

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


def test_instances_have_their_profiles_in_turn_and_decode_instances_their_own() -> None:
    slow, decoding = replace(PROFILE, name="slow"), replace(PROFILE, name="decoding")
    assert Scenario(profile=PROFILE, instances=2).profile_of(1) is PROFILE
    mixed = Scenario(profile=PROFILE, profiles=(PROFILE, slow), instances=3)
    assert [mixed.profile_of(number).name for number in range(3)] == ["test", "slow", "test"]
    split = replace(mixed, prefills=1, decode_profile=decoding)
    assert [split.profile_of(number).name for number in range(3)] == ["test", "decoding", "decoding"]


def test_an_instance_is_there_from_its_joining_until_its_leaving() -> None:
    scenario = Scenario(profile=PROFILE, instances=3, presences=(Presence(1, 5.0, 9.0), Presence(2, leaves_s=4.0)))
    assert [scenario.is_present(0, at) for at in (0.0, 100.0)] == [True, True]
    assert [scenario.is_present(1, at) for at in (0.0, 4.9, 5.0, 8.9, 9.0)] == [False, False, True, True, False]
    assert [scenario.is_present(2, at) for at in (0.0, 3.9, 4.0)] == [True, True, False]


def test_routers_know_the_speed_prior_until_they_have_measured() -> None:
    prior = SpeedPrior(us_per_token=270.0, ns_per_token_context=220.0)
    policy = PolicyConfig.model_validate({"scorers": [{"name": "round_robin"}]})
    scenario = Scenario(profile=PROFILE, instances=2, speed_prior=prior)
    router = SimulatedRouter(policy, scenario, EventQueue().clock, seed=1)
    speeds = [target.latency_model.speed(0.0) for target in router.scheduler.fleet.targets_serving(None)]
    assert [(speed.us_per_token, speed.ns_per_token_context) for speed in speeds] == [(270.0, 220.0)] * 2
