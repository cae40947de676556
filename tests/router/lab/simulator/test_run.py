"""A whole fleet in virtual time: what comes of small workloads, of lags and of failures."""

from array import array
from dataclasses import replace
from typing import Any

import pytest

from router.config import schema
from router.config.sections.admission import AdmissionConfig
from router.features.admission.model_admission import ModelAdmission
from router.features.admission.verdicts import Admitted, Queued
from router.fleet.engine_facts import Gauges
from router.lab.simulator.outcome import RequestEnd, SimulationOutcome, compute_figures
from router.lab.simulator.router import SimulatedRouter
from router.lab.simulator.run import simulate
from router.lab.simulator.scenario import (
    EventLags,
    InstanceFailure,
    LinkSpeed,
    ReplicaLink,
    Scenario,
    StoreScenario,
    Trouble,
)
from router.lab.workloads.model import Session, Span, Turn, Workload
from router.lab.workloads.presets import CODEX
from scorers.admission.contract import Admission
from scorers.contract import View
from scorers.session_affinity import SessionAffinity
from tests.suites.simulation import LEAST, PROFILE, WARM

FLEET = Scenario(profile=PROFILE, instances=4)
TURNS = schema.PolicyConfig.model_validate({"scorers": [{"name": "round_robin"}]})
AGENTS = CODEX.scale(tokens=0.2, sessions=24 / 610, turns=6 / 33, think=0.2)


def alone(*sent: tuple[float, int, int], answer: int = 10) -> Workload:
    """One request a session: when, whose text, how many tokens of it."""
    sessions = [
        Session(number, at_s, (Turn(0, (Span(source, tokens),), answer, 0.0),))
        for number, (at_s, source, tokens) in enumerate(sent)
    ]
    return Workload("alone", 0, tuple(sessions))


def columns(outcome: SimulationOutcome) -> dict[str, object]:
    return {name: column.tobytes() for name, column in vars(outcome).items() if isinstance(column, array)} | {
        "busy": outcome.busy_s,
        "took": outcome.took_s,
    }


def test_the_same_arguments_give_the_same_outcome_to_the_last_digit_and_another_seed_another() -> None:
    def run(seed: int) -> dict[str, object]:
        return columns(simulate(FLEET, WARM, AGENTS.workload(1), seed=seed, at_once=16))

    assert run(1) == run(1)
    assert any(run(1) != run(seed) for seed in (2, 3))  # memory decides most ties, and leaves little to chance


@pytest.mark.parametrize("policy", [WARM, TURNS], ids=["warm", "round_robin"])
@pytest.mark.parametrize("at_once", [None, 8])
def test_every_turn_is_served_once_and_nothing_stays_booked(policy: schema.PolicyConfig, at_once: int | None) -> None:
    workload = AGENTS.workload(3)
    outcome = simulate(FLEET, policy, workload, at_once=at_once)
    assert len(outcome) == workload.turns
    assert set(outcome.end) == {RequestEnd.OK}
    assert outcome.double_bookings == 0
    assert sum(outcome.prompt_tokens) == sum(turn.prompt_tokens for s in workload.sessions for turn in s.turns)


def test_a_lone_request_is_served_as_fast_as_the_profile_says() -> None:
    outcome = simulate(FLEET, WARM, alone((1.0, 1, 5000)))
    assert outcome.ttft_s[0] == pytest.approx(PROFILE.prefill_s(5000, 0))


def test_what_was_asked_before_is_found_again_by_cache_aware_policies_and_by_chance_otherwise() -> None:
    asked = alone(*((float(at), 1 + at % 3, 8000) for at in range(30)))
    hits = {
        name: compute_figures(simulate(FLEET, policy, asked)).local_share
        for name, policy in (("warm", WARM), ("turns", TURNS))
    }
    assert hits["warm"] == pytest.approx(27 / 30 * 7680 / 8000)  # whole blocks of 512, and three are cold
    assert hits["turns"] is not None
    assert hits["turns"] < 0.7


def test_the_pool_serves_what_another_instance_computed() -> None:
    asked = alone(*((5.0 * at, 1, 8000) for at in range(4)))
    pooled = simulate(replace(FLEET, store=StoreScenario(1_000_000, LinkSpeed(100_000.0, 5.0))), TURNS, asked)
    assert list(pooled.pool_tokens) == [0, 7680, 7680, 7680]
    # 5 ms and 7,680 tokens at 100,000 a second, then 320 are computed after them
    assert pooled.ttft_s[1] == pytest.approx(0.0818 + PROFILE.prefill_s(320, 7680))


def test_host_memory_keeps_what_the_gpu_evicts() -> None:
    asked = alone(*((5.0 * at, source, 50_000) for at, source in enumerate([1, 2, 3, 4, 5, 1])))
    one = replace(FLEET, instances=1)
    hosted = replace(one, host=StoreScenario(1_000_000, LinkSpeed(500_000.0, 1.0)))
    assert simulate(one, WARM, asked).host_tokens[-1] == 0
    assert simulate(hosted, WARM, asked).host_tokens[-1] > 40_000


def test_an_instance_that_comes_back_has_lost_its_host_memory() -> None:
    """Five texts of 50,000 tokens, of which its GPUs hold four; the first again after it was away for a second."""
    asked = alone(*((10.0 * at, source, 50_000) for at, source in enumerate([1, 2, 3, 4, 5, 1])))
    hosted = replace(FLEET, instances=1, host=StoreScenario(1_000_000, LinkSpeed(500_000.0, 1.0)))
    died = replace(hosted, trouble=Trouble(failures=(InstanceFailure("down", 0, 46.0, 47.0),)))
    assert simulate(hosted, WARM, asked).host_tokens[-1] > 40_000
    outcome = simulate(died, WARM, asked)
    assert set(outcome.end) == {RequestEnd.OK}
    assert (outcome.host_tokens[-1], outcome.local_tokens[-1]) == (0, 0)


def test_a_pool_that_is_away_costs_its_hits_and_nothing_else() -> None:
    asked = alone(*((5.0 * at, 1, 8000) for at in range(6)))
    trouble = Trouble(pool_away=((7.0, 18.0),))
    outcome = simulate(
        replace(FLEET, store=StoreScenario(1_000_000, LinkSpeed(100_000.0)), trouble=trouble, instances=8), TURNS, asked
    )
    assert [tokens > 0 for tokens in outcome.pool_tokens] == [False, True, False, False, True, True]


def test_events_that_come_late_are_stood_in_for_by_what_was_sent() -> None:
    """Ten requests for one text, 0.4 s apart, while events take 4 s: they stay together all the same."""
    asked = alone(*((1.0 + at / 2.5, 1, 4000) for at in range(10)))
    outcome = simulate(replace(FLEET, lags=EventLags(events_s=4.0)), WARM, asked)
    assert len(set(outcome.instance)) == 1


def test_lost_events_are_replayed() -> None:
    lossy = replace(FLEET, trouble=Trouble(events_lost=0.3))
    whole = simulate(FLEET, WARM, AGENTS.workload(1), at_once=8)
    lost = simulate(lossy, WARM, AGENTS.workload(1), at_once=8)
    assert sum(lost.local_tokens) > 0.9 * sum(whole.local_tokens)


def test_an_instance_that_dies_loses_only_streams_that_had_begun_and_is_used_again_later() -> None:
    asked = alone(*((at / 4, at, 6000) for at in range(200)), answer=100)
    trouble = Trouble(failures=(InstanceFailure("down", 0, 10.05, 25.0),))
    outcome = simulate(replace(FLEET, trouble=trouble), LEAST, asked)
    failed = [row for row, end in enumerate(outcome.end) if end == RequestEnd.FAILED]
    assert len(outcome) == 200
    assert 1 <= len(failed) <= 12
    assert outcome.double_bookings == 0
    at_0 = [outcome.arrived_s[row] for row in range(200) if outcome.instance[row] == 0]
    assert not [at for at in at_0 if 10.1 <= at < 25.0]
    assert [at for at in at_0 if at >= 27.5]


def test_an_instance_that_dies_again_before_it_was_probed_is_not_met() -> None:
    asked = alone(*((at + 0.5, at, 3000) for at in range(30)))
    down = (InstanceFailure("down", 0, 5.0, 10.0), InstanceFailure("down", 0, 11.0, 25.0))
    outcome = simulate(replace(FLEET, instances=2, trouble=Trouble(failures=down)), TURNS, asked)
    assert set(outcome.end) == {RequestEnd.OK}
    at_0 = [outcome.arrived_s[row] for row in range(30) if outcome.instance[row] == 0]
    assert not [at for at in at_0 if 5.0 <= at < 27.0]  # probes are 2 s apart
    assert [at for at in at_0 if at >= 27.0]
    assert outcome.decisions == 30 + 1  # one was sent there in vain, and nobody at 12 s


def test_a_slow_instance_is_given_less_by_a_policy_that_sees_queues() -> None:
    asked = alone(*((at / 6, at, 6000) for at in range(300)))
    trouble = Trouble(failures=(InstanceFailure("slow", 2, 0.0, factor=4.0),))
    outcome = simulate(replace(FLEET, trouble=trouble), WARM, asked)
    counts = [list(outcome.instance).count(number) for number in range(4)]
    assert counts[2] < min(counts[0], counts[1], counts[3])


def test_a_router_that_starts_late_knows_soon_what_was_cached_before() -> None:
    workload = AGENTS.workload(2)
    late = replace(FLEET, trouble=Trouble(router_starts_s=30.0))
    outcome = simulate(late, WARM, workload, at_once=8)
    assert len(outcome) == workload.turns
    assert outcome.double_bookings == 0  # at those that only took turns, too
    after = compute_figures(outcome, since_s=45.0).local_share
    before = compute_figures(outcome, until_s=30.0).local_share
    assert after is not None
    assert before is not None
    assert after > before + 0.1


def test_a_router_that_restarts_knows_soon_what_is_cached() -> None:
    workload, built = AGENTS.workload(2), list[SimulatedRouter]()

    def build(*args: Any, **options: Any) -> SimulatedRouter:
        built.append(SimulatedRouter(*args, **options))
        return built[-1]

    restarts = replace(FLEET, trouble=Trouble(router_restarts_s=30.0))
    outcome = simulate(restarts, WARM, workload, at_once=8, router=build)
    assert len(outcome) == workload.turns
    assert outcome.double_bookings == 0
    assert [router.scheduler.selector.next_number() > 1 for router in built] == [True, True]
    after = compute_figures(outcome, since_s=30.0).local_share
    before = compute_figures(outcome, until_s=30.0).local_share
    assert after is not None
    assert before is not None
    assert after > before - 0.05


def test_what_came_to_a_router_before_the_late_start_ends_there(monkeypatch: pytest.MonkeyPatch) -> None:
    came, ended = dict[Admission, ModelAdmission](), dict[Admission, ModelAdmission]()
    arrive, on_answer = ModelAdmission.arrive, ModelAdmission.on_answer

    def noted(gate: ModelAdmission, *arrival: Any) -> Admitted | Queued:
        verdict = arrive(gate, *arrival)
        came[verdict.admission] = gate
        return verdict

    def noted_end(gate: ModelAdmission, turn: Admission, *answer: Any) -> None:
        ended[turn] = gate
        on_answer(gate, turn, *answer)

    monkeypatch.setattr(ModelAdmission, "arrive", noted)
    monkeypatch.setattr(ModelAdmission, "on_answer", noted_end)
    # A prompt of 5 s and an answer of 4: it is under way when the router starts, at 6 s. The other comes after that.
    asked = alone((1.0, 1, 50_000), (7.0, 2, 8000), answer=300)
    late = replace(FLEET, admission=AdmissionConfig(enabled=True), trouble=Trouble(router_starts_s=6.0))
    outcome = simulate(late, WARM, asked)
    long = list(outcome.session).index(0)
    assert outcome.arrived_s[long] + outcome.duration_s[long] > 6.0
    assert len(came) == 2
    assert ended == came
    assert len(set(came.values())) == 2
    assert outcome.double_bookings == 0


@pytest.mark.parametrize("exchange", [None, ReplicaLink(0.02, 0.2)])
def test_several_routers_share_a_fleet(exchange: ReplicaLink | None) -> None:
    workload, several = AGENTS.workload(2), replace(FLEET, routers=3, exchange=exchange)
    outcome = simulate(several, WARM, workload, at_once=12)
    assert len(outcome) == workload.turns
    assert outcome.double_bookings == 0


def test_what_is_lost_between_routers_depends_on_the_seed_alone() -> None:
    several, asked = replace(FLEET, routers=3, exchange=ReplicaLink(0.02, 0.2)), alone((1.0, 1, 5000), (1.1, 2, 5000))
    assert columns(simulate(several, LEAST, asked)) == columns(simulate(several, LEAST, asked))


def test_routers_that_tell_each_other_what_they_book_do_not_meet_at_one_engine() -> None:
    """Four prompts of 1.8 s within 0.4 s, and polls every 10: by the fewest requests each of four engines gets one."""
    asked = alone(*((1.0 + at / 10, 1 + at, 20_000) for at in range(4)))
    blind = replace(FLEET, routers=2, lags=EventLags(metrics_s=10.0))
    met = [len(set(simulate(blind, LEAST, asked, seed=seed).instance)) for seed in range(4)]
    assert min(met) < 4
    told = replace(blind, exchange=ReplicaLink())
    assert {len(set(simulate(told, LEAST, asked, seed=seed).instance)) for seed in range(4)} == {4}


def test_a_session_stays_with_its_router_only_where_the_balancer_is_sticky() -> None:
    """By session affinity alone, without events: each router knows where it sent a session, or what another says."""
    sticks = schema.PolicyConfig.model_validate({"scorers": [{"name": "session_affinity"}]})
    dumb = replace(FLEET, routers=3, lags=EventLags(events_s=float("inf")))

    def moved(scenario: Scenario) -> int:
        outcome = simulate(scenario, sticks, AGENTS.workload(2), at_once=12)
        return len(set(zip(outcome.session, outcome.instance, strict=True))) - len(set(outcome.session))

    assert moved(dumb) > 0
    assert moved(replace(dumb, sticky=True)) == 0
    assert moved(replace(dumb, exchange=ReplicaLink())) == 0


def test_a_prompt_is_computed_by_one_half_of_the_fleet_and_answered_by_the_other() -> None:
    split = replace(FLEET, prefills=2, handover=LinkSpeed(100_000.0, 10.0))
    outcome = simulate(split, WARM, alone((0.0, 1, 5000), (5.0, 1, 5000)))
    assert set(outcome.instance) <= {2, 3}
    # 10 ms and 5,000 tokens at 100,000 a second; the last token is computed where it is answered
    handed = 0.06 + PROFILE.prefill_s(1, 4999)
    assert outcome.ttft_s[0] == pytest.approx(PROFILE.prefill_s(5000, 0) + handed)
    assert outcome.local_tokens[1] == 4608
    assert outcome.double_bookings == 0


def test_who_decodes_computes_the_prompt_where_the_only_one_that_prefills_has_died() -> None:
    """The prefill instance is to blame, so the other one is not passed over."""
    died = Trouble(failures=(InstanceFailure("down", 0, 1.1),))  # amid a prompt of 0.3 s
    outcome = simulate(replace(FLEET, instances=2, prefills=1, trouble=died), WARM, alone((1.0, 1, 5000)))
    assert list(outcome.end) == [RequestEnd.OK]
    assert list(outcome.instance) == [1]
    assert outcome.ttft_s[0] == pytest.approx(0.1 + PROFILE.prefill_s(5000, 0))
    assert outcome.double_bookings == 0


def test_a_request_may_be_refused_by_a_fleet_of_any_size() -> None:
    outcome = simulate(replace(FLEET, instances=600, max_queued=0), TURNS, alone((0.0, 1, 100)))
    assert list(outcome.end) == [RequestEnd.SHED]
    assert outcome.decisions == 601  # each refused it, then nobody was left


def test_full_queues_shed_what_nobody_takes() -> None:
    asked = alone(*((0.0, at, 20_000) for at in range(60)))
    outcome = simulate(replace(FLEET, max_queued=2), TURNS, asked)
    ends = [outcome.end.count(end) for end in RequestEnd]
    assert ends[RequestEnd.SHED] > 0
    assert ends[RequestEnd.OK] + ends[RequestEnd.SHED] == 60


def test_sessions_at_once_follow_each_other_and_begin_somewhere_in_their_course() -> None:
    workload = AGENTS.workload(4)
    outcome = simulate(FLEET, WARM, workload, at_once=6, staggered=True)
    first = {session.number for session in workload.sessions[:6]}
    assert len(outcome) < workload.turns  # the first six have a past
    assert {outcome.session[row] for row in range(6)} <= first


def test_nothing_is_sent_after_the_end_and_what_runs_is_finished() -> None:
    outcome = simulate(FLEET, WARM, AGENTS.workload(4), at_once=16, until_s=20.0)
    assert max(outcome.arrived_s) < 20.0
    assert set(outcome.end) == {RequestEnd.OK}
    assert outcome.took_s >= 20.0 or len(outcome) < AGENTS.workload(4).turns


# admission control: 32 agents at once, whose contexts are twice what both caches hold, and computing is dear

THRASHED = replace(FLEET, profile=replace(PROFILE, kv_tokens=60_000, us_per_token=600.0), instances=2)
MANY_AGENTS = CODEX.scale(tokens=0.2, sessions=80 / 610, turns=24 / 33, think=0.1)


def through(admission: AdmissionConfig | None, policy: schema.PolicyConfig = WARM) -> SimulationOutcome:
    return simulate(
        replace(THRASHED, admission=admission),
        policy,
        MANY_AGENTS.workload(1),
        seed=1,
        at_once=32,
        staggered=True,
        until_s=300.0,
    )


def test_a_door_makes_caches_useful_that_are_too_small_for_everybody() -> None:
    """Measured: no hits and 84 answers without it, four fifths hit and 276 answers with it."""
    without, behind = (
        compute_figures(through(admission), since_s=60.0, until_s=300.0)
        for admission in (None, AdmissionConfig(enabled=True))
    )
    assert without.local_share is not None
    assert without.local_share < 0.2
    assert behind.local_share is not None
    assert behind.local_share > 0.6
    assert behind.output_tokens_per_s > 2 * without.output_tokens_per_s
    assert without.waited_p90_s is None
    assert behind.waited_p90_s is not None
    assert behind.waited_p90_s > 10.0


def test_the_wait_at_the_door_is_part_of_the_ttft_and_nothing_stays_booked() -> None:
    outcome = through(AdmissionConfig(enabled=True))
    assert outcome.double_bookings == 0
    assert max(outcome.waited_s) > 10.0
    for waited_s, ttft_s in zip(outcome.waited_s, outcome.ttft_s, strict=True):
        assert waited_s <= ttft_s


def test_who_is_turned_away_at_the_door_comes_again_a_second_later_with_the_same() -> None:
    outcome = through(AdmissionConfig(enabled=True, max_wait_s=20.0))
    sent = {
        (outcome.session[row], round(outcome.arrived_s[row], 6)): outcome.prompt_tokens[row]
        for row in range(len(outcome))
    }
    refused = [row for row, end in enumerate(outcome.end) if end == RequestEnd.SHED]
    assert refused
    for row in refused:
        assert outcome.duration_s[row] == pytest.approx(20.0, abs=0.1)
        again_s = outcome.arrived_s[row] + outcome.duration_s[row] + 1.0
        if again_s < 300.0:
            assert sent[outcome.session[row], round(again_s, 6)] == outcome.prompt_tokens[row]
    assert outcome.double_bookings == 0


# polls


def test_metrics_are_polled_at_every_tick_where_requests_are_and_every_ten_seconds_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    polls: list[tuple[int, float, int | None]] = []
    polled = SimulatedRouter.on_metrics

    def noted(router: SimulatedRouter, number: int, gauges: Gauges) -> None:
        polls.append((number, router.scheduler._clock.now(), gauges.running))
        polled(router, number, gauges)

    monkeypatch.setattr(SimulatedRouter, "on_metrics", noted)
    # 8,000 tokens take 0.5 s, 100 of an answer 1.3 s; a last one keeps time going. Ticks: 0.125 and 0.25, 0.25 apart.
    asked = alone((12.0, 1, 8000), (25.0, 2, 100), answer=100)
    outcome = simulate(replace(FLEET, instances=2), WARM, asked)
    busy, idle = (number := outcome.instance[0]), 1 - outcome.instance[0]
    end_s = outcome.arrived_s[0] + outcome.duration_s[0]
    assert 13.5 < end_s < 14.5
    first = 0.125 * (number + 1)
    at_busy = [at_s for of, at_s, _ in polls if of == busy and at_s < 25.0]
    ticks = [first + 0.25 * tick for tick in range(100) if 12.0 <= first + 0.25 * tick <= end_s]
    assert len(ticks) >= 6
    assert at_busy == pytest.approx([first, first + 10.0, *ticks, ticks[-1] + 10.0])
    at_idle = [at_s for of, at_s, _ in polls if of == idle and at_s < 25.0]
    assert at_idle == pytest.approx([0.375 - first + 10.0 * times for times in range(3)])
    assert [running for of, at_s, running in polls if of == busy and 12.2 < at_s < end_s] == [1] * (len(ticks) - 1)


def families(count: int, subs: int) -> Workload:
    """Sessions of two turns whose sub-agents begin with the first 4,096 of their 4,596 tokens."""
    sessions = []
    for number in range(count):
        beginning = Span(100 + number, 4_096)
        first = Turn(0, (beginning, Span(200 + number, 500)), 10, 0.0, tool_call=True)
        started = [
            Session(count * (1 + n) + number, 0.0, (Turn(0, (beginning, Span(300 + 10 * number + n, 500)), 10, 0.01),))
            for n in range(subs)
        ]
        last = Turn(4_606, (Span(400 + number, 100),), 10, 1.0, tool_call=False)
        sessions.append(Session(number, float(number), (first, last), sub_agents=tuple(started)))
    return Workload("families", 0, tuple(sessions))


def test_by_program_sub_agents_are_served_where_their_session_is() -> None:
    affinity = {"name": "session_affinity", "by": "program"}
    policy = schema.PolicyConfig.model_validate({"scorers": [affinity, {"name": "queue_depth", "weight": 0.1}]})
    outcome = simulate(FLEET, policy, families(8, 3), at_once=4)
    assert set(outcome.end) == {RequestEnd.OK}
    assert len(outcome) == 8 * (2 + 3)
    at = dict(zip(outcome.session, outcome.instance, strict=True))
    assert all(at[number] == at[number % 8] for number in at)
    assert len(set(at.values())) > 1, "families spread"
    local = [tokens for session, tokens in zip(outcome.session, outcome.local_tokens, strict=True) if session >= 8]
    assert min(local) == 4_096, "what they share with their session was there"


def test_what_is_known_of_families_is_in_the_views(monkeypatch: pytest.MonkeyPatch) -> None:
    views = []

    def spy(self: SessionAffinity, view: View) -> list[float]:
        views.append(view)
        return [1.0 for _ in view.rows]

    monkeypatch.setattr(SessionAffinity, "score", spy)
    policy = schema.PolicyConfig.model_validate({"scorers": [{"name": "session_affinity"}]})
    simulate(FLEET, policy, families(1, 1), at_once=1)
    root, child, last = views
    assert (root.program, root.parent, root.session_turn) == (root.session, None, 0)
    assert (child.program, child.parent, child.session_turn) == (root.session, root.session, 0)
    assert child.parent_target == last.last_target is not None
    assert (last.session, last.session_turn, last.after_tool_call) == (root.session, 1, True)
    assert last.idle_s is not None
    assert last.idle_s > 1.0, "the pause, and the sub-agent before it"
