"""What is recorded of an answer as it passes, and of a prefill half's."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from router.clock import ManualClock
from router.config.schema import FleetConfig, InstanceConfig, PolicyConfig, SpeedPrior, WeightedPluginConfig
from router.config.sections.models import AliasConfig
from router.features.aliases.aliases import ModelAliases, ModelChoice
from router.features.aliases.stage import AliasUse
from router.fleet.breaker import CircuitBreaker
from router.fleet.fleet import Fleet
from router.fleet.instance import Instance, Target
from router.fleet.latency_model import LatencyModel
from router.prompt.prompt import Endpoint, Prompt, UnknownIds
from router.prompt.usage import Usage
from router.proxy.disaggregated import PrefillResult
from router.proxy.engine_connection import ExchangeFailure
from router.proxy.relay import EngineRefusal, RelayBroken, RelayDeadline, RelayFinished, RelayNotStarted, RelayRejected
from router.request.response_observer import ResponseObserver
from router.scheduling.experiments.experiment import RunningExperiment
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.policy.policy import Policy, build_policy
from router.scheduling.policy.record import Attempt, PrefillRecord, Record, Stages
from router.scheduling.scheduler import Scheduler
from router.scheduling.selector import Selector
from router.scheduling.ticket import Ticket
from tests.router.control.control_plane import experiment
from tests.router.request.requests import a_request
from tests.router.request.some_services import some_services
from tests.suites.views import a_row, a_view

CHUNK = b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n'
LAST = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":1}}\n\ndata: [DONE]\n\n'
PREFILLED = b"""{"id": "chatcmpl-1", "choices": [{"index": 0, "message": {"role": "assistant", "content": "a"}}],
 "usage": {"prompt_tokens": 40, "total_tokens": 41, "completion_tokens": 1,
           "prompt_tokens_details": {"cached_tokens": 16}},
 "kv_transfer_params": {"do_remote_prefill": true, "remote_block_ids": [[1, 2, 3]]}}"""


def a_policy(scorer: str) -> Policy:
    return build_policy("p", PolicyConfig(scorers=[WeightedPluginConfig(name=scorer)]))


def a_target() -> Target:
    instance = Instance(InstanceConfig(url="http://a", name="a"), LatencyModel(SpeedPrior()))
    observer: Any = SimpleNamespace(on_change=lambda target: None)
    return Target(instance, 0, CircuitBreaker(failures=3, open_s=5.0), instance.latency_model, observer)


DECISION = a_policy("round_robin").decide(a_view(a_row("a")))


class SettledPrefills(Scheduler):
    """Keeps what it is told of prefill halves in `ends`."""

    def __init__(self, ends: list[Any], scorer: str) -> None:
        self.ends = ends
        self.selector = Selector(PolicySet({"p": a_policy(scorer)}, "p"), seed=1)
        self.experiment = None

    def on_first_byte(self, ticket: Ticket) -> None: ...

    def settle_prefill(self, ticket: Ticket, *result: Any) -> None:
        self.ends.append(result)


class Scene:
    def __init__(self, leg: PrefillRecord | None = None, needs_session: bool = False) -> None:
        self.record = Record("r-0", 0, 0.0, 0.0, "/v1/chat/completions", "m", True, "unknown", None, Stages())
        self.ticket = SimpleNamespace(
            record=self.record,
            end="client_gone",
            status=None,
            target=a_target(),
            attempt=Attempt(DECISION, None, None, prefill=leg),
        )
        self.prefill_ends: list[Any] = []
        services = some_services(
            scheduler=SettledPrefills(self.prefill_ends, "subagent_groups" if needs_session else "round_robin"),
            tokenization=SimpleNamespace(check_count=lambda *_: True),
            clock=ManualClock(100.0),
        )
        prompt = Prompt(Endpoint.CHAT, Endpoint.CHAT.value, "m", b"", UnknownIds("not_needed"), stream=True)
        self.request = request = a_request(prompt)
        self.observer = ResponseObserver(self.ticket, request, services)  # type: ignore[arg-type]


class NotedWaits(RunningExperiment):
    """Keeps the times to first byte that its requests had when they were answered."""

    def __init__(self) -> None:
        super().__init__(experiment())
        self.waits_ms: list[float | None] = []

    def first_byte(self, record: Record) -> None:
        self.waits_ms.append(record.ttft_ms)


def hang_up(scene: Scene) -> None:
    """The client disconnects, which cancels the attempt."""
    with pytest.raises(asyncio.CancelledError), scene.observer:
        raise asyncio.CancelledError


def test_a_client_that_disconnects_after_the_last_event_was_answered() -> None:
    scene = Scene()
    for chunk in (CHUNK, LAST):
        assert scene.observer.feed(chunk) == chunk
    hang_up(scene)
    assert (scene.ticket.end, scene.record.prompt_tokens, scene.record.output_tokens) == ("ok", 7, 1)


def test_a_client_that_disconnects_before_the_last_event_is_gone() -> None:
    scene = Scene()
    scene.observer.feed(CHUNK)
    hang_up(scene)
    assert (scene.ticket.end, scene.record.prompt_tokens) == ("client_gone", None)


@pytest.mark.parametrize(
    ("end", "word"),
    [
        (RelayFinished(200, 0.0), "ok"),
        (RelayBroken(200, ExchangeFailure.CLOSED, 0.0), "broken"),
        (RelayDeadline(), "deadline"),
        (RelayNotStarted("connect"), "connect"),
        (RelayNotStarted("busy"), "busy"),
        (RelayNotStarted("died"), "died"),
        (RelayNotStarted("died", prefill=True), "prefill"),
        (RelayNotStarted("failed", prefill=True), "prefill"),
        (RelayRejected(EngineRefusal(400, [], b"")), "rejected"),
    ],
)
def test_how_each_relay_end_is_recorded(end: Any, word: str) -> None:
    scene = Scene()
    scene.observer.on_end(end)
    assert scene.ticket.end == word


def test_a_prefill_half_reports_its_cost_and_what_it_handed_over() -> None:
    leg = PrefillRecord(DECISION, None, None)
    scene = Scene(leg)
    scene.observer.on_prefill_end(PrefillResult("ok", 200, PREFILLED))
    assert scene.prefill_ends == [("ok", 200, Usage(40, 16, 1))]
    prefilled = scene.observer.prefilled
    assert prefilled is not None
    params = b'{"do_remote_prefill": true, "remote_block_ids": [[1, 2, 3]]}'
    assert prefilled == (params, 130.0, leg), "now 100, lease 30"
    assert scene.record.prompt_tokens is None, "the client's answer is the other one"


def test_a_failed_prefill_half_hands_nothing_over() -> None:
    scene = Scene(PrefillRecord(DECISION, None, None))
    scene.observer.on_prefill_end(PrefillResult("failed", 500))
    assert scene.prefill_ends == [("failed", 500, Usage(None, None, None))]
    assert scene.observer.prefilled is None


@pytest.mark.parametrize(("needs_session", "tool_call"), [(True, True), (False, None)])
def test_how_an_answer_ended_is_read_where_a_policy_needs_it(needs_session: bool, tool_call: bool | None) -> None:
    scene = Scene(needs_session=needs_session)
    with scene.observer:
        scene.observer.feed(b'data: {"choices":[{"delta":{},"finish_reason":"tool_calls"}]}\n\n' + LAST)
        scene.observer.on_end(RelayFinished(200, 0.0))
    assert scene.record.tool_call is tool_call
    assert scene.record.prompt_tokens == 7


def test_experiment_and_split_get_the_first_byte_with_its_time() -> None:
    """A process that passes its requests on sends the time: else the owner takes a long answer for a long wait."""
    arms = {"old": {"model": "m", "share": 50}, "new": {"model": "n", "share": 50}}
    aliases = ModelAliases({"chat": AliasConfig.model_validate({"split": arms})}, Fleet(FleetConfig()))
    policies, models = NotedWaits(), NotedWaits()
    aliases.splits[0].restart(models)
    scene = Scene()
    scene.request.hold(AliasUse(aliases, ModelChoice("chat", "m", "m", arm="old", unit=b"unit"), ManualClock()))
    scene.record.arm = "near"
    scene.observer._scheduler.experiment = policies
    scene.observer.on_first_byte(200)
    assert (policies.waits_ms, models.waits_ms) == ([100_000.0], [100_000.0])
