"""Waiting in this loop, over a real core of one instance with 400 tokens: exactly once, whatever ends it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from router.config.sections.admission import AdmissionConfig
from router.config.sections.experiment import ExperimentConfig
from router.errors import ConfigError, TooBusy
from router.features.admission.pending_request import derive_session, leaves_context
from router.features.admission.waiting import AdmissionQueues, AdmissionStage
from router.fleet.instance import ServedModel
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.prompt import Endpoint, Prompt, Text, UnknownIds
from router.request.experiment_unit import window_unit
from router.scheduling.conversations import Conversations
from router.scheduling.policy.admission_rules import check_arm_rules
from router.scheduling.policy.record import Record
from tests.patience import PATIENCE_S
from tests.router.features.admission.leased import Leased, enter
from tests.router.scheduling.test_scheduler import House

SERVED = ServedModel("m", None)


class Scene:
    def __init__(self, **settings: Any) -> None:
        self.house = House(count=1)
        self.waits: list[tuple[str, str, str]] = []
        controller = AdmissionConfig.model_validate({"enabled": True} | settings)
        self.queues = AdmissionQueues(
            controller,
            self.house.core,
            self.house.clock,
            lambda model, queue, end, s: self.waits.append((model, queue, end)),
        )
        self.stage = AdmissionStage(self.queues, self.house.core.conversations)

    async def acquire(self, session: str, tokens: int) -> Any:
        known = TokenizedPrompt([0] * tokens, True, "given", {}, 0.0, 0.0)
        return Leased(await enter(self.stage, a_prompt(session), known))

    def switch(self, **settings: Any) -> None:
        self.queues.switch(AdmissionConfig.model_validate({"enabled": True} | settings))

    @property
    def live(self) -> float:
        (admission_of_m,) = self.queues
        return admission_of_m.state().live.context_tokens

    @property
    def waiting(self) -> int:
        (admission_of_m,) = self.queues
        return len(admission_of_m.state().waiting)

    def answered(self, lease: Any, tokens: int) -> None:
        record: Record = self.house.record()
        record.status, record.ttft_ms, record.prompt_tokens, record.output_tokens = 200, 1.0, tokens, 5
        lease.record = record


def a_prompt(session: str | None, endpoint: Endpoint = Endpoint.COMPLETIONS, **fields: Any) -> Prompt:
    return Prompt(endpoint, endpoint.value, "m", b'{"prompt": "x"}', Text("x", True), session=session, **fields)


async def test_the_end_of_one_request_admits_the_next() -> None:
    scene = Scene()
    first = await scene.acquire("a", 300)
    second = asyncio.create_task(scene.acquire("b", 300))
    await asyncio.sleep(0)
    assert (scene.waiting, scene.live) == (1, 300)
    with first:
        pass  # nobody answered
    async with asyncio.timeout(PATIENCE_S):
        with await second as lease:
            assert lease.waited_s is not None
            assert (scene.waiting, scene.live) == (0, 300)
            scene.answered(lease, 310)
    assert scene.live == 315
    assert scene.waits == [("m", "new", "passed")]


async def test_a_client_that_leaves_while_it_waits_gives_everything_back_even_if_just_admitted() -> None:
    scene = Scene()
    first = await scene.acquire("a", 300)
    waiting = [asyncio.create_task(scene.acquire(name, 300)) for name in "bcd"]
    await asyncio.sleep(0)
    waiting[1].cancel()
    await asyncio.wait([waiting[1]])
    assert scene.waiting == 2
    with first:
        pass  # b is let in here, and goes away before it hears of it
    waiting[0].cancel()
    async with asyncio.timeout(PATIENCE_S):
        with await waiting[2]:
            assert (scene.waiting, scene.live) == (0, 300)
    assert scene.live == 0
    assert sorted(end for _, _, end in scene.waits) == ["client_gone", "client_gone", "passed"]


async def test_too_long_is_too_busy() -> None:
    scene = Scene(max_wait_s=0.02)
    with await scene.acquire("a", 300):
        second = asyncio.create_task(scene.acquire("b", 300))
        await asyncio.sleep(0)
        scene.house.clock.advance(0.03)
        with pytest.raises(TooBusy, match="number 1 in the queue") as refused:
            await second
        assert refused.value.retry_after_s == 1
        assert scene.waiting == 0
    assert scene.waits == [("m", "new", "refused")]


async def test_an_exception_gives_back_what_was_taken() -> None:
    scene = Scene()
    with pytest.raises(ValueError, match="broken"), await scene.acquire("a", 300):
        raise ValueError("broken")
    assert scene.live == 0


async def test_waiting_requests_survive_a_switch_of_the_rule() -> None:
    """400 tokens hold one session of 300; a cap of two requests lets the second one begin, and the third one wait."""
    scene = Scene()
    first = await scene.acquire("a", 300)
    waiting = [asyncio.create_task(scene.acquire(name, 300)) for name in "bc"]
    await asyncio.sleep(0)
    scene.switch(rule={"name": "concurrency", "per_target": 2})
    async with asyncio.timeout(PATIENCE_S):
        second = await waiting[0]
    assert scene.waiting == 1
    scene.switch(rule={"name": "fit"})
    with first:
        pass
    assert (scene.waiting, scene.live) == (1, 300), "the second one, which another rule let in, counts"
    with second:
        pass
    async with asyncio.timeout(PATIENCE_S):
        with await waiting[1]:
            assert scene.live == 300
    assert (scene.waiting, scene.live) == (0, 0)


async def test_turned_off_everybody_begins_and_turned_on_again_those_count() -> None:
    scene = Scene()
    first = await scene.acquire("a", 300)
    waiting = asyncio.create_task(scene.acquire("b", 300))
    await asyncio.sleep(0)
    scene.switch(enabled=False)
    async with asyncio.timeout(PATIENCE_S):
        second = await waiting
    assert (await scene.acquire("c", 300)).__enter__() is None
    scene.switch()
    assert scene.live == 600
    with first, second:
        pass
    assert scene.live == 0


async def test_a_rule_that_cannot_be_built_changes_nothing() -> None:
    scene = Scene()
    with pytest.raises(ConfigError, match=r"admission.rule: unknown admission rule 'fitt' \(did you mean 'fit'"):
        scene.switch(rule={"name": "fitt"})
    assert scene.queues.config.rule.name == "fit"
    with pytest.raises(ConfigError, match="unknown parameter 'per_instance'"):
        Scene(rule={"name": "concurrency", "per_instance": 3})


async def test_nothing_is_counted_when_admission_is_disabled() -> None:
    scene = Scene(enabled=False)
    for number in range(5):
        with await scene.acquire(str(number), 10**6) as lease:
            assert lease is None
    assert list(scene.queues) == []


async def test_a_prompt_of_unknown_length_needs_the_mean() -> None:
    scene = Scene()
    first = await scene.acquire("a", 300)
    second = asyncio.create_task(enter(scene.stage, a_prompt("b"), UnknownIds("media")))
    await asyncio.sleep(0)
    assert scene.waiting == 1
    with first:
        pass
    with Leased(await second):
        pass


def test_whose_session_it_is() -> None:
    known = Conversations()
    assert derive_session(a_prompt("s"), known) == derive_session(a_prompt("s", Endpoint.CHAT), known)
    assert derive_session(a_prompt("s"), known) != derive_session(a_prompt("t"), known)
    assert derive_session(a_prompt(None), known) is not None, "its conversation"
    assert derive_session(a_prompt(None, Endpoint.OTHER), known) is None


def test_only_what_leaves_a_context_is_counted() -> None:
    assert leaves_context(a_prompt(None))
    assert not leaves_context(a_prompt("s", Endpoint.OTHER))
    assert not leaves_context(a_prompt(None, Endpoint.RESPONSES, previous_response_id="r"))
    assert leaves_context(a_prompt("s", Endpoint.RESPONSES, previous_response_id="r"))


async def test_in_an_experiment_each_window_has_the_rule_of_its_arm_also_for_those_that_wait() -> None:
    """Windows of 100 s: in those of `open` everybody begins, in those of `full` 400 tokens hold one session of 300."""
    scene = Scene()
    arms = {
        "full": {"share": 50, "policy": "test", "admission": {"name": "fit", "idle_below": 0}},
        "open": {"share": 50, "policy": "test", "admission": {"name": "none"}},
    }
    experiment = ExperimentConfig.model_validate({"unit": "time", "window_s": 100.0, "arms": arms, "seed": 1})
    policy_set = replace(scene.house.core.selector.policy_set, experiment=experiment, admission=scene.queues.config)
    drawn = [policy_set.assign(window_unit(experiment, 1000.0 + 100.0 * n)).arm for n in range(20)]
    until_full = drawn.index("full")
    scene.house.clock.advance(100.0 * until_full)
    scene.queues.follow(policy_set)
    first = await scene.acquire("a", 300)
    second = asyncio.create_task(scene.acquire("b", 300))
    await asyncio.sleep(0)
    assert (first.rule, scene.waiting) == ("fit", 1)
    scene.house.clock.advance(100.0 * (drawn.index("open", until_full) - until_full))
    third = await scene.acquire("c", 300)
    async with asyncio.timeout(PATIENCE_S):
        with first, third, await second as lease:
            assert (lease.rule, third.rule, third.waited_s) == ("none", "none", None)
    scene.queues.follow(replace(policy_set, experiment=None))
    assert scene.queues.config == policy_set.admission


@pytest.mark.parametrize(
    ("arm", "enabled", "said"),
    [
        ({"name": "thunder"}, True, "thunder"),
        ({"name": "fit", "idel": 1}, True, "idel"),
        ({"name": "fit"}, False, "enabled"),
    ],
)
def test_what_arms_name_is_built_before_it_is_needed(arm: dict[str, Any], enabled: bool, said: str) -> None:
    arms = {"one": 50, "other": {"share": 50, "policy": "one", "admission": arm}}
    experiment = ExperimentConfig.model_validate({"unit": "time", "arms": arms})
    with pytest.raises(ConfigError, match=said):
        check_arm_rules(experiment, AdmissionConfig(enabled=enabled))
