"""Every policy file that ships is read, built and used."""

import pytest
import yaml

from router.config import schema
from router.lab.simulator.outcome import RequestEnd
from router.lab.simulator.run import simulate
from router.lab.simulator.scenario import Scenario
from router.lab.sweep import options
from router.lab.workloads.presets import CODEX
from router.scheduling.policy.policy import Policy, build_policy
from scorers.contract import Decode
from tests.paths import CONFIGS
from tests.suites.views import a_load, a_row, a_view, an_overlap

FOLDER = CONFIGS / "policies"
FILES = sorted(FOLDER.glob("*.yaml"))


def policy(name: str) -> Policy:
    return build_policy(name, schema.PolicyConfig.model_validate(yaml.safe_load((FOLDER / f"{name}.yaml").read_text())))


def test_the_files_that_the_readme_promises_are_there() -> None:
    promised = {
        "aibrix_prefix", "consistent_hash", "consistent_hash_bounded", "dualmap", "dynamo_agentic", "dynamo_cost",
        "expected_ttft", "jsew", "lbgr", "least_requests", "least_work_left", "llmd_affinity_gate", "llmd_agentic",
        "llmd_weighted", "lmetric", "lmetric_guarded", "lora_affinity", "mooncake_alg1", "polyserve", "power_of_two",
        "prefix_softmax", "production_stack_loadaware", "ramjet", "random", "ray_prefix_affinity", "round_robin",
        "session_hash", "session_sticky", "sglang_threshold", "slo_headroom", "smetric", "soft_affinity",
        "subagent_groups", "vllm_router_kv_aware", "warm",
    }  # fmt: skip
    assert {path.stem for path in FILES} == promised


@pytest.mark.parametrize("name", [path.stem for path in FILES])
def test_every_file_decides_and_explains_itself(name: str) -> None:
    decision = policy(name).decide(a_view(a_row("a"), a_row("b")))
    assert decision.target in ("a/0", "b/0")
    assert (FOLDER / f"{name}.yaml").read_text().startswith("# ")


@pytest.mark.parametrize("name", [path.stem for path in FILES])
def test_every_file_serves_a_simulated_fleet_and_a_second_time_the_same(name: str) -> None:
    spec = schema.PolicyConfig.model_validate(yaml.safe_load((FOLDER / f"{name}.yaml").read_text()))
    fleet = Scenario(profile=options.load_profile("qwen3-32b-2xh100"), instances=3)
    agents = CODEX.scale(tokens=0.1, sessions=9 / 610, turns=4 / 33, think=0.2).workload(1)
    first, second = (simulate(fleet, spec, agents, seed=1, at_once=6) for _ in range(2))
    assert set(first.end) == {RequestEnd.OK}
    assert first.double_bookings == 0
    assert (first.instance, first.duration_s) == (second.instance, second.duration_s)


def test_llmd_weighted_goes_to_the_cache_unless_it_is_swamped() -> None:
    def choice(requests: int, kv_usage: float) -> str:
        warm = a_row("warm", an_overlap(950), a_load(requests=requests, elsewhere=0, kv_usage=kv_usage))
        cold = a_row("cold", an_overlap(0), a_load(requests=2, elsewhere=0, kv_usage=0.1))
        return policy("llmd_weighted").decide(a_view(warm, cold, prompt_tokens=1000)).target

    assert choice(requests=6, kv_usage=0.4) == "warm/0"  # 2*1 + 2*0.4 + 3*0.05 = 2.95 < 0 + 2*0.1 + 3 = 3.2
    assert choice(requests=6, kv_usage=0.9) == "cold/0"  # 2*1 + 2*0.9 + 3*0.05 = 3.95 > 3.2


def test_session_sticky_beats_any_queue() -> None:
    home = a_row("home", load=a_load(requests=50))
    view = a_view(home, a_row("idle"), session="s", last_target="home/0")
    assert policy("session_sticky").decide(view).target == "home/0"  # 0 + 0.5*1 < 1 + 0
    assert policy("session_sticky").decide(view._replace(last_target=None)).target == "idle/0"


def test_expected_ttft_leaves_a_holder_whose_queue_is_longer_than_warming_up_another() -> None:
    def choice(queued_ms: float) -> str:
        holder = a_row("holder", an_overlap(960), a_load(queued_ms=queued_ms))
        return policy("expected_ttft").decide(a_view(holder, a_row("cold", an_overlap(0)), prompt_tokens=1000)).target

    # cold: 5 + 1000 * 0.125 + 1000 * 500 / 1e6 = 130.5;   the holder: 5 + 40 * 0.125 + 40 * 980 / 1e6 = 10.04
    assert choice(queued_ms=120.0) == "holder/0"
    assert choice(queued_ms=121.0) == "cold/0"


def test_warm_stays_at_a_dear_holder_only_where_the_fleet_is_busy() -> None:
    """Computing everything takes 130.5 ms at `cold`, the rest at `holder` 10.04 (as above), whose queue is 200 ms."""
    holder = a_row("holder", an_overlap(960), a_load(queued_ms=200.0))
    idle = a_view(holder, a_row("cold", an_overlap(0)), prompt_tokens=1000, busy=0.0)
    # holder: 200 + 10.04 = 210.04;   cold: 130.5
    assert policy("warm").decide(idle).target == "cold/0"
    # at 90 % busy each ms of work costs 10: holder 200 + 10 * 10.04 = 300.4;   cold 10 * 130.5 = 1305
    assert policy("warm").decide(idle._replace(busy=0.9)).target == "holder/0"


def test_dynamo_agentic_prefers_a_cached_session_to_an_idle_target() -> None:
    # 100 blocks, 90 held: 4 * (100 - 2 * 90) + 100 + 100 + 64 * requests = -120 + 64 * requests
    # idle: 4 * 100 + 100 = 500
    def choice(requests: int) -> str:
        home = a_row("home", an_overlap(1440), a_load(requests=requests, context_tokens=1600))
        view = a_view(home, a_row("idle", an_overlap(0)), prompt_tokens=1600)
        return policy("dynamo_agentic").decide(view).target

    assert choice(9) == "home/0"  # -120 + 576 = 456 < 500
    assert choice(10) == "idle/0"  # 520


def test_llmd_agentic_lets_a_short_session_move_and_keeps_a_long_one() -> None:
    def choice(tokens: int) -> str:
        home = a_row("home", an_overlap(tokens), a_load(requests=4, elsewhere=0, kv_usage=0.9))
        idle = a_row("idle", an_overlap(0), a_load(requests=0, elsewhere=0, kv_usage=0.1))
        view = a_view(home, idle, prompt_tokens=tokens, session="s", last_target="home/0")
        return policy("llmd_agentic").decide(view).target

    # home: 2 * 1 + 2 * 0.9 + 3 * 0.8 * (1 - (tokens / 16000)^2) + 0;  idle: 0 + 2 * 0.1 + 3 + 1 = 4.2
    assert choice(4000) == "idle/0"  # 3.8 + 2.4 * 0.9375 = 6.05
    assert choice(15_000) == "home/0"  # 3.8 + 2.4 * 0.12109 = 4.09


def test_polyserve_fills_one_target_until_it_misses_the_objective() -> None:
    """A step takes 1 ms per request of the batch, this one included; the objective is 50 ms."""
    step = Decode(0.0, 1000.0, 0.0, 9, 0.1)

    def choice(requests: int) -> str:
        loads = {"full": requests, "half": 20, "empty": 0}
        rows = [a_row(name, an_overlap(0), a_load(requests=count)) for name, count in loads.items()]
        view = a_view(*[row._replace(speed=row.speed._replace(decode=step)) for row in rows], prompt_tokens=1000)
        return policy("polyserve").decide(view).target

    assert choice(49) == "full/0"
    assert choice(50) == "half/0"
